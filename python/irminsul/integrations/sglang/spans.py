"""Reused positions of a prompt -> the records that planning and running a batch share.

Must not know how spans are found or run; positions are tokens of one request's prompt.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from irminsul._history import moved
from irminsul.integrations.sglang.tree.nodes import Rows
from irminsul.integrations.sglang.tree.provenance import Moved


@dataclass(frozen=True)
class Limits:
    """What a batch may be expanded to.

    Parameters
    ----------
    rows, row_tokens
        Most rows, and most prefix tokens of all rows: attention backends size buffers by these.
    min_span
        Shortest span worth a hole of its own, in tokens.
    positions
        Length of the rotation table; beyond it no row is moved.
    forward_tokens
        Most tokens that one forward computes, which memory was set aside for; 0 is not known, or
        nothing that a rank may keep to alone.
    """

    rows: int
    row_tokens: int
    min_span: int
    positions: int
    forward_tokens: int = 0

    def less(self, windows: Sequence[Window], rows: int) -> Limits:
        """Return what `windows` and `rows` more rows leave of these limits."""
        starts = [start for window in windows for start, _ in window.holes()]
        return replace(
            self,
            rows=self.rows - len(starts) - rows,
            row_tokens=self.row_tokens - sum(starts),
        )

    def hold(self, windows: Sequence[Window]) -> bool:
        """Return whether a batch of `windows` keeps these limits."""
        left = self.less(windows, 0)
        return left.rows >= 0 and left.row_tokens >= 0


class Span(NamedTuple):
    """Positions ``[start, end)`` of one request that live tree rows can serve.

    ``cut`` marks what is left of a longer span between rows that are computed on purpose.
    """

    start: int
    end: int
    delta: int
    hops: int
    depth: int
    rows: tuple[Rows, ...]
    cut: bool = False

    @property
    def length(self) -> int:
        """Number of tokens."""
        return self.end - self.start

    @property
    def on_host(self) -> bool:
        """True when the rows lie in host memory, not in tree nodes; a span never mixes the two."""
        return bool(self.rows) and getattr(self.rows[0][0], "on_host", False)

    def part(self, start: int, end: int) -> Span:
        """Return what serves ``[start, end)``, which lies inside."""
        skip, left, rows = start - self.start, end - start, []
        for node, offset, count in self.rows:
            used = min(count - skip, left)
            if used > 0:
                rows.append((node, offset + skip, used))
                left -= used
            skip = max(0, skip - count)
        return self._replace(start=start, end=end, rows=tuple(rows))

    def without(self, start: int, end: int) -> list[Span]:
        """Return what is left when ``[start, end)`` is computed."""
        sides = (self.start, min(self.end, start)), (max(self.start, end), self.end)
        return [self.part(low, high) for low, high in sides if low < high]

    def moved(self) -> Moved:
        """Return how the rows will have come about once they are moved."""
        return Moved(self.start, self.end, *moved(self.hops, self.depth, self.delta))


class Found(NamedTuple):
    """What a lookup found for a prompt from `start` on, in that state of the mirror."""

    version: int
    changes: int
    start: int
    spans: Sequence[Span]


class Share(NamedTuple):
    """How the prompt tokens of one request are served in this round."""

    rid: str
    prefix: int
    reused: int
    computed: int


@dataclass
class Window:
    """The positions ``[start, end)`` that one request prefills in this round.

    ``changes`` is the mirror's when the rows of `spans` were last known to be where they say.
    ``again`` are positions cut out of spans to be computed although rows were found for them, in
    order, and ``unmet`` counts those that there was no room for.
    """

    request: Any
    start: int
    end: int
    spans: list[Span] = field(default_factory=list)
    changes: int = -1
    again: Sequence[int] = ()
    unmet: int = 0

    def holes(self) -> list[tuple[int, int]]:
        """Return the positions to compute, as half-open intervals; each becomes a row.

        The last one ends with the window, whose last token is computed.
        """
        found, position = [], self.start
        for span in self.spans:
            if span.start > position:
                found.append((position, span.start))
            position = span.end
        found.append((position, self.end))
        return found

    @property
    def reused(self) -> int:
        """Number of tokens that are moved."""
        return sum(span.length for span in self.spans)

    @property
    def relinked(self) -> int:
        """Number of rows that are computed although others were found for them."""
        return bisect.bisect_left(self.again, self.end)

    def reach(self, budget: int) -> int:
        """Return the furthest end up to which at most `budget` tokens have to be computed.

        Within a span one more token is computed than lies outside of spans: a round's last.
        """
        position, left = self.start, budget
        for span in self.spans:
            gap = span.start - position
            if left <= gap:
                return position + left
            left -= gap
            position = span.end
        return min(self.end, position + left)

    def give_up(self) -> None:
        """Reuse nothing; what was chosen in that reuse goes with it."""
        self.spans, self.again, self.unmet = [], (), 0

    def cut(self, end: int) -> None:
        """End the window at `end`, whose last token is computed."""
        self.end = end
        self.spans = [
            span if span.end < end else span.part(span.start, end - 1)
            for span in self.spans
            if span.start < end - 1
        ]


@dataclass(frozen=True)
class HostCopy:
    """What a batch takes from host memory.

    Parameters
    ----------
    pieces
        Rows in host memory, first row and count of each, in the order of the slots.
    target_slots : Tensor, int64, [n]
        KV rows to write, on the batch's device.
    deltas : Tensor, int64, [n]
        Target position minus source position, on the host.
    """

    pieces: tuple[Rows, ...]
    target_slots: Tensor
    deltas: Tensor

    @classmethod
    def of(cls, placed: Sequence[tuple[Span, Tensor]]) -> HostCopy | None:
        """Return the copy of spans on the host, each with its slots; None when there are none."""
        if not placed:
            return None
        deltas = [torch.full((span.length,), span.delta) for span, _ in placed]
        return cls(
            pieces=tuple(piece for span, _ in placed for piece in span.rows),
            target_slots=torch.cat([target for _, target in placed]).to(torch.int64),
            deltas=torch.cat(deltas),
        )

    @property
    def tokens(self) -> int:
        """Number of rows that a layer receives."""
        return len(self.deltas)


@dataclass
class BatchPlan:
    """What the model runner needs to run a trimmed batch.

    Parameters
    ----------
    holes
        Per request, the intervals to compute; each becomes one row of the forward batch.
    positions : Tensor, int64, [computed tokens]
        On the batch's device.
    source_slots, target_slots : Tensor, int64, [moved tokens]
        KV rows to read and to write.
    deltas : Tensor, int64, [moved tokens]
        Target position minus source position.
    shares
        Per request, for reports.
    host
        What is copied from host memory besides, or None.
    lent
        What requests borrow where it lies, see `irminsul.integrations.sglang.share.loans.Lent`;
        None lends nothing.
    """

    holes: list[list[tuple[int, int]]]
    positions: Tensor
    source_slots: Tensor
    target_slots: Tensor
    deltas: Tensor
    shares: tuple[Share, ...]
    host: HostCopy | None = None
    lent: Any = None
    adopted: bool = False

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors that another stream will read."""
        found = (self.positions, self.source_slots, self.target_slots, self.deltas)
        return found if self.host is None else (*found, self.host.target_slots)
