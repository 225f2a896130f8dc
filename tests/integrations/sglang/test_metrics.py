"""Counters, and the one log line per reason and interval."""

from __future__ import annotations

import logging

import pytest
from irminsul.integrations.sglang.metrics import Metrics


def test_counts_add_up() -> None:
    metrics = Metrics(60.0)
    metrics.add("reused_tokens", 5)
    metrics.add("reused_tokens", 7)
    metrics.fallback("planner")
    assert metrics.snapshot() == {"reused_tokens": 12, "fallback": {"planner": 1}}


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


def test_counters_reach_prometheus_under_their_names() -> None:
    prometheus = pytest.importorskip("prometheus_client")
    labels = {"model_name": "m", "tp_rank": "0"}
    metrics = Metrics(60.0, prometheus=True, labels=labels)
    metrics.add("reused_tokens", 3)
    metrics.fallback("planner")
    value = prometheus.REGISTRY.get_sample_value
    assert value("irminsul:reused_tokens_total", labels) == 3
    assert value("irminsul:fallback_total", {**labels, "reason": "planner"}) == 1
