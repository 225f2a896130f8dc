"""Slots, positions, deltas and ids of a batch: the kernel's table of runs against plain torch."""

from __future__ import annotations

import ctypes
from array import array
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from irminsul.integrations.sglang.batch import numbers
from irminsul.integrations.sglang.spans import Span, Window
from irminsul.native.spans import RUN


def write_spans(runs: array[int], computed: int, moved: int, slots: torch.Tensor) -> torch.Tensor:
    """Do on the CPU what the kernel does, number by number."""
    made = torch.full((2 * computed + 3 * moved,), -1)
    slots, positions, source, target, deltas = made.split_with_sizes(
        (computed, computed, moved, moved, moved)
    )
    for at in range(0, len(runs), RUN):
        given, sources, first, count, value = runs[at : at + RUN]
        assert count > 0
        for i in range(count):
            if sources:
                source[first + i] = ctypes.c_int64.from_address(sources + 8 * i).value
                target[first + i] = ctypes.c_int64.from_address(given + 8 * i).value
                deltas[first + i] = value
            else:
                slots[first + i] = ctypes.c_int64.from_address(given + 8 * i).value
                positions[first + i] = value + i
    return made


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "can_write", lambda slots: True)
    monkeypatch.setattr(numbers, "write_spans", write_spans)


# Holes and spans that take turns; each span is rows of one or more nodes.
_windows = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.lists(
            st.tuples(st.integers(0, 9), st.lists(st.integers(1, 20), min_size=1, max_size=3)),
            max_size=5,
        ),
        st.integers(1, 9),
    ),
    min_size=1,
    max_size=4,
)


def window_of(start: int, parts: list[tuple[int, list[int]]], tail: int) -> Window:
    spans, position = [], start
    for hole, counts in parts:
        low = position + hole
        position = low + sum(counts)
        rows = tuple((node(30 + count, low), 7, count) for count in counts)
        spans.append(Span(low, position, low - 3, 0, 0, rows))
    return Window(None, start, position + tail, spans)


def node(length: int, seed: int) -> Any:
    return SimpleNamespace(value=torch.arange(length) * 3 + 1000 * seed)


def batch_of(windows: list[Window]) -> tuple[torch.Tensor, torch.Tensor]:
    length = sum(window.end - window.start for window in windows)
    return torch.arange(length) * 7 + 5, torch.arange(length) * 11 + 2


def both(windows: list[Window], slots: torch.Tensor, ids: torch.Tensor) -> tuple[Any, Any]:
    holes = [window.holes() for window in windows]
    moved, gaps = numbers.placed(windows, slots)
    return numbers.written(windows, holes, slots, ids), numbers.made_of(
        windows, holes, moved, gaps, ids
    )


@settings(deadline=None)
@given(_windows)
def test_the_kernel_is_given_what_plain_torch_makes(given: Any) -> None:
    windows = [window_of(*one) for one in given]
    made, wanted = both(windows, *batch_of(windows))
    for name, value in made._asdict().items():
        assert torch.equal(value, getattr(wanted, name)), name


@pytest.mark.parametrize("spoilt", ["slots", "ids", "value", "apart", "short", "rows"])
def test_what_the_kernel_cannot_read_is_made_by_torch(spoilt: str) -> None:
    windows = [window_of(3, [(4, [9, 5]), (2, [8])], 6)]
    slots, ids = batch_of(windows)
    kept = windows[0].spans[0].rows[1][0]
    if spoilt == "slots":
        slots = slots.to(torch.int32)
    elif spoilt == "ids":
        ids = ids.to(torch.int32)
    elif spoilt == "value":
        kept.value = kept.value.to(torch.int32)
    elif spoilt == "apart":
        kept.value = torch.arange(2 * len(kept.value))[::2]
    elif spoilt == "short":
        kept.value = kept.value[:11]  # rows 7 to 12 are asked for
    else:  # one row less than positions: the kernel would leave a slot unwritten
        span = windows[0].spans[0]
        windows[0].spans[0] = span._replace(rows=(span.rows[0], (kept, 7, 4)))
    holes = [window.holes() for window in windows]
    assert numbers.written(windows, holes, slots, ids) is None


def test_a_node_without_slots_is_no_plan() -> None:
    windows = [window_of(0, [(4, [9])], 6)]
    windows[0].spans[0].rows[0][0].value = None
    slots, ids = batch_of(windows)
    holes = [windows[0].holes()]
    assert numbers.written(windows, holes, slots, ids) is None
    moved, gaps = numbers.placed(windows, slots)
    with pytest.raises(AttributeError):
        numbers.made_of(windows, holes, moved, gaps, ids)


def test_rows_on_the_host_are_not_for_the_kernel() -> None:
    windows = [window_of(0, [(4, [9]), (3, [8])], 6)]
    host = SimpleNamespace(on_host=True)
    windows[0].spans[1] = windows[0].spans[1]._replace(rows=((host, 0, 8),))
    assert numbers.written(windows, [windows[0].holes()], *batch_of(windows)) is None
