"""What each rank would take from its host memory -> what all of them hold alike.

Knows spans and the numbers that say where rows came from; must not know tensors or processes.

Copies, fetches and evictions end at other times on every rank, so two ranks may find other chunks
for one prompt. Rows are taken where every rank has the same chunk for the same positions, computed
at the same place: the rest is a hole on all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from irminsul.integrations.sglang.spans import Span

__all__ = ["Piece", "described", "shared"]


class Piece(NamedTuple):
    """Rows of one chunk that serve the positions ``[start, end)`` of a prompt.

    ``source`` says which rows they are, whatever part of them is taken: the chunk's key, where
    position 0 of the prompt would lie in it, and the span's delta, hops and depth.
    """

    start: int
    end: int
    source: tuple[bytes, int, int, int, int]


def described(spans: Sequence[Span]) -> list[Piece]:
    """Return the pieces of the spans among `spans` that lie in host memory, in order."""
    found = []
    for span in spans:
        start = span.start
        for rows, offset, count in span.rows if span.on_host else ():
            source = (rows.key, offset - start, span.delta, span.hops, span.depth)
            found.append(Piece(start, start + count, source))
            start += count
    return found


def shared(spans: Sequence[Span], everyone: Sequence[Sequence[Piece]]) -> list[Span]:
    """Return the spans of `spans` on the host that every rank has, the same on all of them.

    Parameters
    ----------
    spans
        What this rank would take.
    everyone
        What every rank would take, this one included, from `described`.
    """
    held = {rows.key: rows for span in spans if span.on_host for rows, _, _ in span.rows}
    pieces = list(everyone[0])
    for other in everyone[1:]:
        pieces = _overlaps(pieces, other)
    found: list[Span] = []
    for piece in sorted(pieces):
        _append(found, piece, held[piece.source[0]])
    return found


def _overlaps(ours: Sequence[Piece], theirs: Sequence[Piece]) -> list[Piece]:
    by_source: dict[Any, list[Piece]] = defaultdict(list)
    for piece in theirs:
        by_source[piece.source].append(piece)
    found = []
    for piece in ours:
        for other in by_source[piece.source]:
            start, end = max(piece.start, other.start), min(piece.end, other.end)
            if start < end:
                found.append(Piece(start, end, piece.source))
    return found


def _append(spans: list[Span], piece: Piece, rows: Any) -> None:
    """Add `piece` to the last of `spans`, or as a span of its own where a run breaks off."""
    _, shift, delta, hops, depth = piece.source
    part = (rows, shift + piece.start, piece.end - piece.start)
    last = spans[-1] if spans else None
    if last and (last.end, last.delta, last.hops, last.depth) == (piece.start, delta, hops, depth):
        spans[-1] = Span(last.start, piece.end, delta, hops, depth, (*last.rows, part))
    else:
        spans.append(Span(piece.start, piece.end, delta, hops, depth, (part,)))
