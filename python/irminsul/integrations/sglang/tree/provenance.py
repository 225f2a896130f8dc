"""How a request got its rows -> hops and depth of every part of a radix-tree node.

Must not know SGLang, tensors or the registry: positions and counts only.

A row is exact when everything before it was computed exactly. A moved row was computed in another
context, so it is one approximation deeper than its donor; a computed row is as deep as the deepest
row before it. ``hops`` counts the rotations that a row's k_r has been through.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple


class Moved(NamedTuple):
    """Positions ``[start, end)`` of a request whose rows were moved there."""

    start: int
    end: int
    hops: int
    depth: int


@dataclass(slots=True)
class Segment:
    """Consecutive rows of one tree node that share hops and depth.

    ``key`` is the registry's node, or None when the rows are no donors.
    """

    length: int
    hops: int
    depth: int
    key: int | None = None


@dataclass(slots=True)
class NodeRecord:
    """What is known about the rows of one tree node.

    Parameters
    ----------
    start
        Position of the node's first row.
    depth
        Depth of the context that the node's end leaves to what follows.
    segments
        The node's rows in order.
    """

    start: int
    depth: int
    segments: list[Segment]

    def last_key(self) -> int | None:
        """Return the registry node that a child continues."""
        return self.segments[-1].key if self.segments else None


def forget_from(moved: Iterable[Moved], position: int) -> list[Moved]:
    """Return `moved` without what lies at or after `position`: it is being produced again."""
    return [
        Moved(part.start, min(part.end, position), part.hops, part.depth)
        for part in moved
        if part.start < position
    ]


def segments(start: int, end: int, moved: Iterable[Moved], context: int) -> Iterator[Segment]:
    """Cut ``[start, end)`` where moved and computed rows meet.

    Parameters
    ----------
    start, end
        Positions of a node's rows.
    moved
        The request's moved positions, ascending and disjoint; also those before `start`.
    context
        Depth that the rows before `start` leave.

    Yields
    ------
    Segment
        In order, without keys; their lengths add up to ``end - start``.
    """
    position = start
    for part in moved:
        if part.start >= end:
            break
        low, high = max(part.start, start), min(part.end, end)
        if low > position:
            yield Segment(low - position, 0, context)
        if high > low:
            yield Segment(high - low, part.hops, part.depth)
            position = high
        context = max(context, part.depth)
    if end > position:
        yield Segment(end - position, 0, context)


def split(record: NodeRecord, at: int, parent_depth: int) -> tuple[NodeRecord, NodeRecord, int]:
    """Cut `record` after its first `at` rows.

    Parameters
    ----------
    record
        The record to cut; its segments are used up.
    at
        Number of rows that the head keeps, inside the node.
    parent_depth
        Depth that the parent's end leaves.

    Returns
    -------
    head, tail, inside
        The two records, and how many rows of the head's last segment were cut off a segment that
        goes on in the tail (0 when the cut lies between two segments). Both parts of a cut
        segment carry its key; the caller gives the head's part one of its own.
    """
    head: list[Segment] = []
    tail: list[Segment] = []
    inside = 0
    left = at
    for segment in record.segments:
        if left >= segment.length:
            head.append(segment)
        elif left > 0:
            inside = left
            head.append(Segment(left, segment.hops, segment.depth, segment.key))
            tail.append(Segment(segment.length - left, segment.hops, segment.depth, segment.key))
        else:
            tail.append(segment)
        left = max(0, left - segment.length)
    head_depth = max([parent_depth, *(segment.depth for segment in head)])
    return (
        NodeRecord(record.start, head_depth, head),
        NodeRecord(record.start + at, record.depth, tail),
        inside,
    )
