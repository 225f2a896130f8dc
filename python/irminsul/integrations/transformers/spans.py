"""Reuse plans -> spans of donor rows, the form in which the engine carries them out.

Must not know tensors. Studies make or change spans to ask what a rule is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from irminsul._history import moved
from irminsul.errors import DeltaOutOfRange, InvalidParams
from irminsul.planning import Reuse, ReusePlan

__all__ = ["Planner", "RowPiece", "Span", "check_spans", "holes", "spans_from"]


@dataclass(frozen=True)
class RowPiece:
    """Neighbouring rows of one kept sequence.

    Parameters
    ----------
    sequence : int
        Number that the engine gave to the sequence.
    start : int
        Position of the first row in that sequence.
    length : int
    """

    sequence: int
    start: int
    length: int


@dataclass(frozen=True)
class Span:
    """Prompt positions that take over rows of kept sequences.

    Parameters
    ----------
    target : int
        First prompt position.
    pieces : tuple of RowPiece
        The rows, in order.
    rotation : int
        Positions that the keys are turned by: `target` minus the position where the rows were
        computed. (Another value serves a study only.)
    hops, depth : int
        Rotations, and layers of approximation, that the rows have behind them afterwards.
    """

    target: int
    pieces: tuple[RowPiece, ...]
    rotation: int
    hops: int = 0
    depth: int = 0

    @property
    def length(self) -> int:
        """Number of rows."""
        return sum(piece.length for piece in self.pieces)

    @property
    def end(self) -> int:
        """Prompt position after the last one."""
        return self.target + self.length

    def cut(self, start: int, end: int) -> Span | None:
        """Return the part of the span in prompt positions [start, end), or None if it is empty."""
        first, last = max(start, self.target), min(end, self.end)
        if first >= last:
            return None
        pieces, at = [], self.target
        for piece in self.pieces:
            low, high = max(first, at), min(last, at + piece.length)
            if low < high:
                pieces.append(RowPiece(piece.sequence, piece.start + low - at, high - low))
            at += piece.length
        return replace(self, target=first, pieces=tuple(pieces))


Planner = Callable[[Sequence[int]], Sequence[Span]]
"""Token ids of a prompt -> the spans to take over, in ascending order; the rest is computed."""


def spans_from(plan: ReusePlan, owner: Callable[[int], tuple[int, int]]) -> list[Span]:
    """Turn a plan into spans.

    Parameters
    ----------
    owner : callable
        Node of the registry -> its sequence, and its first position there.
    """
    spans = []
    for segment in plan.segments:
        if not isinstance(segment, Reuse):
            continue
        pieces = []
        for piece in segment.pieces:
            sequence, start = owner(piece.node)
            pieces.append(RowPiece(sequence, start + piece.offset, piece.length))
        hops, depth = moved(segment.hops, segment.depth, segment.delta)
        spans.append(Span(segment.target, tuple(pieces), segment.delta, hops, depth))
    return spans


def check_spans(spans: Sequence[Span], prompt_len: int, max_positions: int) -> None:
    """Raise InvalidParams unless spans ascend, do not overlap, and leave the last token over.

    A rotation beyond the model's positions is a DeltaOutOfRange.
    """
    end = 0
    for span in spans:
        if abs(span.rotation) >= max_positions:
            raise DeltaOutOfRange(
                f"a span at {span.target} is turned by {span.rotation} positions; the model's "
                f"{max_positions} positions allow less than that"
            )
        if span.target < end or span.length < 1:
            raise InvalidParams(
                f"a span at {span.target} of {span.length} rows follows one that ends at {end}; "
                "spans must ascend and hold at least one row"
            )
        end = span.end
    if end >= prompt_len:
        raise InvalidParams(
            f"spans reach position {end} of a prompt of {prompt_len} tokens; the last one must be "
            "computed"
        )


def holes(spans: Sequence[Span], prompt_len: int) -> list[tuple[int, int]]:
    """Position ranges that no span covers."""
    edges = [0, *(edge for span in spans for edge in (span.target, span.end)), prompt_len]
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return [(start, end) for start, end in pairs if start < end]
