"""Ranks that hold different chunks take the same rows; memory that may go is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="the plugin's files import torch")

import torch
from hypothesis import given
from hypothesis import strategies as st
from irminsul import Policy
from irminsul.errors import Unsupported
from irminsul.integrations.sglang.admission import finding
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.settings import Settings
from irminsul.integrations.sglang.spans import Limits, Span, Window
from irminsul.integrations.sglang.start import build
from irminsul.integrations.sglang.tiers import common, identity
from irminsul.integrations.sglang.tiers.runtime import Tiers

LIMITS = Limits(rows=100, row_tokens=1 << 20, min_span=16, positions=1 << 16)


class Rows:
    """Stands for leased rows of one chunk."""

    on_host = True

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.number = int.from_bytes(key[:7], "little")


def _span(start: int, parts: list[tuple[bytes, int, int]], delta: int = 5, depth: int = 0) -> Span:
    end = start + sum(count for _, _, count in parts)
    rows = tuple((Rows(key), offset, count) for key, offset, count in parts)
    return Span(start, end, delta, 0, depth, rows)


def _met(ranks: list[list[Span]], limits: Limits = LIMITS) -> list[Window]:
    """Return the window of each rank after all have met."""
    everyone = [common.described(spans) for spans in ranks]
    found = []
    for spans in ranks:
        tiers = Tiers.__new__(Tiers)
        tiers._agreement = SimpleNamespace(gathered=lambda _: everyone)  # type: ignore[assignment]
        tiers._metrics = Metrics(60.0)
        window = Window(None, 0, 1000, list(spans))
        tiers.meet(window, limits)
        found.append(window)
    return found


def _places(window: Window) -> list[tuple[int, int]]:
    return [(span.start, span.end) for span in window.spans]


def test_what_all_have_is_taken_as_one_run() -> None:
    """One rank found two chunks as one span, another as two, and the second cuts the first one."""
    both = [_span(100, [(b"a", 0, 64), (b"b", 0, 80)])]
    apart = [_span(120, [(b"a", 20, 44)]), _span(164, [(b"b", 0, 60)])]
    first, second = _met([both, apart])
    assert _places(first) == _places(second) == [(120, 224)]
    assert finding.digest([first]) == finding.digest([second])
    ((rows, offset, count), _) = first.spans[0].rows
    assert (rows.key, offset, count) == (b"a", 20, 44)


def test_the_same_text_of_another_source_is_not_the_same_rows() -> None:
    ours = [_span(100, [(b"a", 0, 64)])]
    for theirs in (
        [_span(100, [(b"b", 0, 64)])],
        [_span(100, [(b"a", 0, 64)], delta=6)],
        [_span(100, [(b"a", 0, 64)], depth=1)],
        [],
    ):
        assert all(window.spans == [] for window in _met([ours, theirs]))


def test_rows_of_the_tree_stay_and_short_ones_go() -> None:
    node = SimpleNamespace()
    local = Span(0, 50, 3, 0, 0, ((node, 0, 50),))
    ours = [local, _span(100, [(b"a", 0, 64)])]
    theirs = [local, _span(100, [(b"a", 0, 10)])]
    assert [_places(window) for window in _met([ours, theirs])] == [[(0, 50)], [(0, 50)]]


_CHUNK = st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.integers(0, 3), st.integers(1, 40))


@given(st.lists(st.lists(_CHUNK, max_size=5), min_size=2, max_size=3))
def test_all_ranks_come_to_one_plan_of_what_each_has(held: list[list[Any]]) -> None:
    ranks = []
    for chunks in held:
        spans, position = [], 0
        for key, gap, count in chunks:
            position += gap
            spans.append(_span(position, [(key, position % 7, count)]))
            position += count
        ranks.append(spans)
    windows = _met(ranks, Limits(100, 1 << 20, 1, 1 << 16))
    assert len({finding.digest([window]) for window in windows}) == 1
    for window, spans in zip(windows, ranks, strict=True):
        has = _rows_of(spans)
        assert _rows_of(window.spans) <= has
    everywhere = set.intersection(*(_rows_of(spans) for spans in ranks))
    assert _rows_of(windows[0].spans) == everywhere


def _rows_of(spans: list[Span]) -> set[tuple[int, bytes, int]]:
    """Return position, chunk and row of everything that `spans` take."""
    found = set()
    for span in spans:
        position = span.start
        for rows, offset, count in span.rows:
            found |= {(position + i, rows.key, offset + i) for i in range(count)}
            position += count
    return found


def test_the_parts_of_a_model_have_one_name() -> None:
    assert identity.joined(["a"]) == "a"
    assert identity.joined(["a", "b"]) != identity.joined(["b", "a"])
    assert len(identity.joined(["a", "b"])) == 32


def _add(monkeypatch: pytest.MonkeyPatch, options: Settings, saver: bool = False) -> None:
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: 2)
    monkeypatch.setattr(build.compat, "server_value", lambda given, name, default: given[name])
    context: Any = SimpleNamespace(
        params=SimpleNamespace(attn_tp_cache_group="group"),
        server_args={"enable_memory_saver": saver},
    )
    table: Any = None
    build._add_tiers(context, None, table, options, Metrics(60.0), Policy())


def test_memory_that_may_be_released_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unsupported, match="drop --enable-memory-saver"):
        _add(monkeypatch, Settings(host_bytes=1 << 30), saver=True)


def test_without_tiers_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _add(monkeypatch, Settings(), saver=True)


def test_ranks_get_as_far_as_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AttributeError, match="tp_worker"):
        _add(monkeypatch, Settings(host_bytes=1 << 30))
