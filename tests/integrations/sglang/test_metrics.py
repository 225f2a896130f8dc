"""Counters, and the one log line per reason and interval."""

from __future__ import annotations

import itertools
import json
import logging
import re
import sys
import threading
from pathlib import Path

import pytest
from irminsul import Namespace, Registry
from irminsul.integrations.sglang import metrics as metrics_module
from irminsul.integrations.sglang.metrics import Metrics

ROOT = Path(__file__).parents[3]


def test_counts_add_up() -> None:
    metrics = Metrics(60.0)
    metrics.add("reused_tokens", 5)
    metrics.add("reused_tokens", 7)
    metrics.fallback("planner")
    assert metrics.snapshot() == {"reused_tokens": 12, "fallback": {"planner": 1}}


def test_counting_in_one_thread_does_not_disturb_the_summary_of_another() -> None:
    metrics = Metrics(0.0)
    stats = {"tokens": 5, "capacity_tokens": 9, "evicted_nodes": 0}
    over = threading.Event()

    def count() -> None:
        for number in itertools.takewhile(lambda _: not over.is_set(), itertools.count()):
            metrics.add(f"name {number}", 1)
            metrics.add("shared", 1)

    thread = threading.Thread(target=count)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for _ in range(50):
            metrics.add("shared", 1)
            metrics.sample(stats, active=True)
            metrics.snapshot()
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(interval)
    counted = sum(n for name, n in metrics.counts.items() if name.startswith("name "))
    assert metrics.counts["shared"] == 50 + counted


def test_one_line_per_reason_and_interval(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics(1000.0)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            try:
                raise RuntimeError("cause")
            except RuntimeError:
                metrics.fallback("planner", "planning failed for %s", "r")
        metrics.fallback("stale", "a donor changed")
    assert [record.getMessage() for record in caplog.records] == [
        "irminsul: planning failed for r",
        "irminsul: a donor changed",
    ]
    assert "cause" in caplog.text
    assert metrics.fallbacks == {"planner": 3, "stale": 1}
    assert not caplog.records[1].exc_info


def test_everything_reaches_prometheus_under_its_name() -> None:
    prometheus = pytest.importorskip("prometheus_client")
    labels = {"model_name": "m", "tp_rank": "0"}
    metrics = Metrics(60.0, prometheus=True, labels=labels)
    registry = Registry(200)
    for node in range(3):
        registry.add(node, None, range(node * 1000, node * 1000 + 90), namespace=Namespace())
    metrics.add("reused_tokens", 3)
    metrics.fallback("planner")
    metrics.observe("rows_per_forward", 3)
    with metrics.timed("plan_seconds"):
        pass
    metrics.sample(registry.stats(), active=True)
    value = prometheus.REGISTRY.get_sample_value
    assert value("irminsul:reused_tokens_total", labels) == 3
    assert value("irminsul:fallback_total", {**labels, "reason": "planner"}) == 1
    assert value("irminsul:rows_per_forward_bucket", {**labels, "le": "2.0"}) == 0
    assert value("irminsul:rows_per_forward_bucket", {**labels, "le": "4.0"}) == 1
    assert value("irminsul:plan_seconds_count", labels) == 1
    assert value("irminsul:registry_tokens", labels) == 180
    assert value("irminsul:registry_capacity_tokens", labels) == 200
    assert value("irminsul:registry_evictions_total", labels) == 1
    assert value("irminsul:reuse_active", labels) == 1
    # What never happened is 0, not missing.
    assert value("irminsul:dropped_spans_total", labels) == 0
    assert value("irminsul:relocate_seconds_count", labels) == 0


def test_evictions_are_counted_once() -> None:
    metrics = Metrics(60.0)
    stats = {"tokens": 5, "capacity_tokens": 9}
    for evicted in (2, 2, 7):
        metrics.sample({**stats, "evicted_nodes": evicted}, active=False)
    assert metrics.counts["registry_evictions"] == 7
    assert metrics.gauges["reuse_active"] == 0


def test_the_log_sums_up_once_per_interval_and_only_news(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics(0.0)
    stats = {"tokens": 500, "capacity_tokens": 900, "evicted_nodes": 0}
    with caplog.at_level(logging.INFO):
        metrics.sample(stats, active=True)
        for _ in range(2):
            for name, amount in {"planned_batches": 1, "reused_tokens": 90, "spans": 2}.items():
                metrics.add(name, amount)
            metrics.add("computed_tokens", 10)
            metrics.sample(stats, active=True)
        metrics.sample(stats, active=True)
    line = "irminsul: 90 of 100 prompt tokens reused in 1 batches, 2 spans; 500 tokens known"
    assert [record.getMessage() for record in caplog.records] == [line, line]


def test_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(metrics_module.time, "monotonic", lambda: now[0])
    metrics = Metrics(60.0)
    assert metrics.due("a", 10.0)
    assert not metrics.due("a", 10.0)
    assert metrics.due("b", 10.0)
    now[0] += 10.0
    assert metrics.due("a", 10.0)


def test_a_time_is_taken_also_of_what_fails() -> None:
    seen: list[tuple[str, float]] = []
    metrics = Metrics(60.0)
    metrics.observe = lambda name, value: seen.append((name, value))  # type: ignore[method-assign]
    with pytest.raises(KeyError), metrics.timed("plan_seconds"):
        raise KeyError
    assert seen[0][0] == "plan_seconds"
    assert 0 <= seen[0][1] < 10


def names() -> set[str]:
    """Every name as /metrics shows it."""
    counters = {f"irminsul:{name}_total" for name in metrics_module._HELP}
    others = {f"irminsul:{name}" for name in metrics_module._OBSERVED | metrics_module._GAUGES}
    return counters | others


def test_every_metric_is_documented() -> None:
    page = (ROOT / "docs" / "sglang.md").read_text()
    assert [name for name in sorted(names()) if name not in page] == []


def test_the_dashboard_shows_known_metrics_and_leaves_none_out() -> None:
    dashboard = json.loads((ROOT / "docs" / "grafana" / "irminsul.json").read_text())
    queries = " ".join(
        target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])
    )
    shown = {
        word.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
        for word in re.findall(r"irminsul:\w+", queries)
    }
    assert shown <= names()
    assert names() - shown == set()
