"""Hops and depth by position, against a list with one entry per token."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from irminsul.integrations.sglang.tree import provenance
from irminsul.integrations.sglang.tree.provenance import Moved, NodeRecord


@st.composite
def histories(draw: st.DrawFn) -> list[Moved]:
    position, moved = 0, []
    for _ in range(draw(st.integers(0, 5))):
        start = position + draw(st.integers(0, 6))
        end = start + draw(st.integers(1, 8))
        moved.append(Moved(start, end, draw(st.integers(0, 3)), draw(st.integers(1, 4))))
        position = end
    return moved


def per_token(length: int, moved: list[Moved], context: int) -> list[tuple[int, int]]:
    """Slow reference: (hops, depth) of each position from 0."""
    found, deepest = [], context
    for position in range(length):
        owner = next((m for m in moved if m.start <= position < m.end), None)
        if owner is not None:
            deepest = max(deepest, owner.depth)
        found.append((owner.hops, owner.depth) if owner else (0, deepest))
    return found


def expand(parts: list[provenance.Segment]) -> list[tuple[int, int]]:
    return [(part.hops, part.depth) for part in parts for _ in range(part.length)]


@given(histories(), st.integers(0, 30), st.integers(1, 30), st.integers(0, 3))
def test_segments_agree_with_the_reference(
    moved: list[Moved], start: int, length: int, context: int
) -> None:
    parts = list(provenance.segments(start, start + length, moved, context))
    assert all(part.length > 0 for part in parts)
    assert expand(parts) == per_token(start + length, moved, context)[start:]


@given(histories(), st.integers(2, 40), st.data())
def test_a_split_loses_nothing(moved: list[Moved], length: int, data: st.DataObject) -> None:
    at = data.draw(st.integers(1, length - 1))
    parts = list(provenance.segments(0, length, moved, 0))
    for key, part in enumerate(parts):
        part.key = key
    record = NodeRecord(0, max(part.depth for part in parts), parts)
    whole = expand(record.segments)
    depth = record.depth
    head, tail, inside = provenance.split(record, at, 0)
    assert expand(head.segments) == whole[:at]
    assert expand(tail.segments) == whole[at:]
    assert (head.start, tail.start, tail.depth) == (0, at, depth)
    assert head.depth == max((depth for _, depth in whole[:at]), default=0)
    if inside:
        assert head.segments[-1].key == tail.segments[0].key
        assert head.segments[-1].length == inside
    else:
        assert head.segments[-1].key != tail.segments[0].key


@given(histories(), st.integers(0, 60))
def test_what_is_produced_again_is_forgotten(moved: list[Moved], position: int) -> None:
    kept = provenance.forget_from(moved, position)
    wanted = {p for part in moved for p in range(part.start, part.end) if p < position}
    assert {p for part in kept for p in range(part.start, part.end)} == wanted


def test_rows_behind_a_moved_one_are_no_more_exact_than_it() -> None:
    parts = list(provenance.segments(0, 20, [Moved(8, 12, 1, 1)], 0))
    assert parts[0].length == 8
    assert [part.depth for part in parts] == [0, 1, 1]
