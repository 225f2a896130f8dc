"""Finished sequences -> donors for later prompts, bounded by the pages there are.

Must not know models or forward passes. Every kept sequence is mirrored in a registry as a chain of
nodes, cut where the history of its rows changes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from torch import Tensor

from irminsul._core import ChunkParams, Namespace, Policy, Registry
from irminsul._ids import common_prefix
from irminsul.errors import InvalidParams, InvalidTokens
from irminsul.integrations.transformers.pool import Pages
from irminsul.integrations.transformers.spans import RowPiece, Span, spans_from

__all__ = ["Kept", "Part", "Store", "token_ids"]

TokenArray = npt.NDArray[np.uint32]


def token_ids(prompt: Sequence[int], vocabulary: int) -> TokenArray:
    """Ids of a prompt as an array, or InvalidTokens that names what is wrong."""
    if len(prompt) == 0:
        raise InvalidTokens("a prompt is empty; it must hold at least one token")
    ids = np.asarray(prompt)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise InvalidTokens(f"a prompt must be a flat sequence of integers, got {ids.dtype}")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocabulary:
        bad = low if low < 0 else high
        raise InvalidTokens(f"token id {bad}: the vocabulary has 0 to {vocabulary - 1}")
    return ids.astype(np.uint32)


@dataclass(frozen=True)
class Part:
    """Rows of a sequence up to `end` that share one history."""

    end: int
    hops: int
    depth: int


@dataclass
class Kept:
    """A sequence whose rows later prompts may take over."""

    tokens: TokenArray
    pages: list[int]
    slots: Tensor
    parts: list[Part]
    namespace: Namespace
    nodes: list[int] = field(default_factory=list)
    used: int = 0


class Store:
    """Kept sequences, their pages and their registry.

    Parameters
    ----------
    pages : Pages
        Where rows live; the store gives pages back when sequences are forgotten.
    capacity_tokens : int
        Token slots of all pages.
    params, policy
        As for `irminsul.Registry`.
    """

    def __init__(
        self, pages: Pages, capacity_tokens: int, params: ChunkParams, policy: Policy
    ) -> None:
        self.pages = pages
        # The registry holds on to parts of removed runs for a while, hence the factor.
        self.registry = Registry(2 * capacity_tokens, params, policy)
        self.kept: dict[int, Kept] = {}
        self.forgotten = 0
        self._owner: dict[int, tuple[int, int]] = {}
        self._numbers = itertools.count(1)
        self._clock = itertools.count(1)

    def keep(
        self,
        tokens: TokenArray,
        pages: list[int],
        slots: Tensor,
        parts: list[Part],
        namespace: Namespace,
    ) -> int:
        """Take a finished sequence over; return its number."""
        number = next(self._numbers)
        kept = Kept(tokens, pages, slots, parts, namespace, used=next(self._clock))
        self.kept[number] = kept
        start, parent = 0, None
        for part in parts:
            node = next(self._numbers)
            self.registry.add(
                node,
                parent,
                tokens[start : part.end],
                namespace=namespace,
                base_position=start,
                hops=part.hops,
                depth=part.depth,
            )
            self._owner[node] = (number, start)
            kept.nodes.append(node)
            start, parent = part.end, node
        return number

    def forget(self, number: int) -> None:
        """Drop a sequence and give its pages back."""
        kept = self.kept.pop(number)
        for node in reversed(kept.nodes):
            self.registry.discard(node)
            del self._owner[node]
        self.pages.give(kept.pages)

    def clear(self) -> None:
        """Drop everything."""
        for number in list(self.kept):
            self.forget(number)

    def make_room(self, pages: int, needed: Sequence[Span]) -> list[int] | None:
        """Take pages, forgetting the longest unused sequences that no needed span reads."""
        held = {piece.sequence for span in needed for piece in span.pieces}
        order = sorted((k for k in self.kept if k not in held), key=lambda k: self.kept[k].used)
        for number in order:
            if self.pages.free >= pages:
                break
            self.forget(number)
            self.forgotten += 1
        return self.pages.take(pages)

    def touch(self, spans: Sequence[Span]) -> None:
        """Count the donors of these spans as used now."""
        for span in spans:
            for piece in span.pieces:
                self.kept[piece.sequence].used = next(self._clock)

    def prefix(self, tokens: TokenArray, namespace: Namespace, *, exact: bool) -> list[Span]:
        """Longest common prefix with a kept sequence, as spans of equal history.

        Parameters
        ----------
        exact : bool
            Whether rows that stand on approximation are left out.
        """
        best, donor = 0, 0
        for number, kept in self.kept.items():
            if kept.namespace != namespace:
                continue
            length = common_prefix(tokens, kept.tokens)
            if exact:
                length = min(length, _exact(kept.parts))
            if length > best:
                best, donor = length, number
        best = min(best, len(tokens) - 1)
        return _prefix_spans(donor, self.kept[donor].parts, best) if best else []

    def check_rows(self, spans: Sequence[Span]) -> None:
        """Raise InvalidParams when a span names rows that are not kept."""
        for piece in (piece for span in spans for piece in span.pieces):
            kept = self.kept.get(piece.sequence)
            rows = 0 if kept is None else len(kept.tokens)
            if piece.start < 0 or piece.length < 1 or piece.start + piece.length > rows:
                raise InvalidParams(
                    f"rows {piece.start} to {piece.start + piece.length} of sequence "
                    f"{piece.sequence} are not kept; it has {rows}"
                )

    def plan(self, tokens: TokenArray, namespace: Namespace, prefix: Sequence[Span]) -> list[Span]:
        """Spans behind an exact prefix that the registry finds."""
        prefix_len = prefix[-1].end if prefix else 0
        with self.registry.lookup(tokens, namespace=namespace, prefix_len=prefix_len) as plan:
            return spans_from(plan, self._owner.__getitem__)


def _exact(parts: Sequence[Part]) -> int:
    """Length of the head that stands on no approximation."""
    end = 0
    for part in parts:
        if part.depth:
            break
        end = part.end
    return end


def _prefix_spans(donor: int, parts: Sequence[Part], length: int) -> list[Span]:
    spans, start = [], 0
    for part in parts:
        end = min(part.end, length)
        if start < end:
            piece = RowPiece(donor, start, end - start)
            spans.append(Span(start, (piece,), 0, part.hops, part.depth))
        start = end
    return spans
