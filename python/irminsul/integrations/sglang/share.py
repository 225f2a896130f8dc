"""Spans of a planned batch -> pages that requests borrow where they lie, and their locks.

Knows the planner's spans, the tree's locks and the pool's pages; must not know SGLang's versions.

A request borrows whole pages of its own positions: the core of a span from page border to page
border. The slots that SGLang had given to them go back to the allocator at once, and the request's
tiles point to the lender's rows instead. What is left of the span at both ends is moved as usual.
The lender's nodes stay locked until the borrower is released. No tree node ever borrows, so a slot
has one owner in the tree, as everywhere in SGLang.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from irminsul.attention import PAGE_SIZE
from irminsul.integrations.sglang.compat import pool_row
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.planner import Placed, use_on_this_stream
from irminsul.integrations.sglang.share_tables import (
    MOST_CUTS,
    Borrowed,
    Entry,
    LoanTables,
    Piece,
)
from irminsul.integrations.sglang.spans import Span, Window

LEAST_PAGES = 4
"""Fewest pages worth borrowing in one piece: an offset costs one tile more, a copy costs little."""

Interval = tuple[int, int]


@dataclass
class Loan:
    """What one running request borrows.

    Parameters
    ----------
    row : int
        The request's row in ``req_to_token``.
    number : int
        Its entry of the tables.
    borrowed : list of Borrowed
        Ascending.
    nodes : list
        Locked once for each time they are listed.
    kept : list of (start, end)
        Own positions that the tree has taken over.
    """

    row: int
    number: int
    borrowed: list[Borrowed] = field(default_factory=list)
    nodes: list[Any] = field(default_factory=list)
    kept: list[Interval] = field(default_factory=list)

    @property
    def first(self) -> int:
        """First borrowed position: the tree may know the request up to here."""
        return self.borrowed[0].start

    @property
    def tokens(self) -> int:
        """Number of borrowed positions."""
        return sum(run.end - run.start for run in self.borrowed)

    def own(self, start: int, end: int) -> list[Interval]:
        """Return the parts of ``[start, end)`` that the request has slots of its own for."""
        away = [(run.start, run.end) for run in self.borrowed] + self.kept
        parts, position = [], start
        for low, high in sorted(away):
            if high <= position:
                continue
            if low >= end:
                break
            if low > position:
                parts.append((position, low))
            position = high
        if position < end:
            parts.append((position, end))
        return parts


@dataclass(frozen=True)
class Lent:
    """What one request of a batch will borrow beyond what it does already.

    Parameters
    ----------
    row, number
        See `Loan`.
    runs : tuple of Borrowed
        The new ones.
    nodes : tuple
        Tree nodes that hold their rows.
    slots : Tensor, int64, [tokens]
        Slots that SGLang gave to the borrowed positions.
    entry : Entry
        The request's tiles, old and new.
    """

    row: int
    number: int
    runs: tuple[Borrowed, ...]
    nodes: tuple[Any, ...]
    slots: Tensor
    entry: Entry


class Sharing:
    """All loans of one engine.

    Parameters
    ----------
    cache
        The tree whose nodes lend.
    tables
        What the attention backend reads.
    metrics
        What to count.
    """

    def __init__(self, cache: Any, tables: LoanTables, metrics: Metrics) -> None:
        self._cache = cache
        self._tables = tables
        self._metrics = metrics
        self._loans: dict[int, Loan] = {}
        self._unused = list(range(tables.entries, 0, -1))
        self._staged: list[Entry] = []

    @property
    def tokens(self) -> int:
        """Positions of running requests whose rows are not their own."""
        return sum(loan.tokens for loan in self._loans.values())

    def at(self, row: int | None) -> Loan | None:
        """Return what the request at `row` of ``req_to_token`` borrows."""
        return None if row is None else self._loans.get(row)

    def divide(self, windows: Sequence[Window], placed: Placed) -> tuple[Placed, tuple[Lent, ...]]:
        """Return what of `placed` is moved, and what is borrowed; nothing is changed yet.

        Parameters
        ----------
        windows
            What each request prefills.
        placed
            All their spans in order, each with the slots of its tokens.
        """
        moved: Placed = []
        lent: list[Lent] = []
        unused, rest = list(self._unused), iter(placed)
        for window in windows:
            own = [next(rest) for _ in window.spans]
            cores = self._cores(window, own, bool(unused))
            for span, slots in own:
                moved += _edges(span, slots, cores.get(span.start))
            if cores:
                row = pool_row(window.request)
                loan = self._loans.get(row)
                number = unused.pop() if loan is None else loan.number
                lent.append(self._lent(row, number, own, cores))
        return moved, tuple(lent)

    def lend(self, lent: Iterable[Lent]) -> None:
        """Lock the lenders and give back the slots that are not needed."""
        spare = []
        for part in lent:
            loan = self._loans.get(part.row)
            if loan is None:
                self._unused.remove(part.number)
                loan = self._loans[part.row] = Loan(part.row, part.number)
            for node in part.nodes:
                self._cache.inc_lock_ref(node)
            loan.nodes += part.nodes
            loan.borrowed += part.runs
            table = self._cache.req_to_token_pool.req_to_token
            for run in part.runs:
                # The pool's unused row: whoever reads here by mistake finds nobody's rows, and
                # whoever writes harms none.
                table[part.row, run.start : run.end] = 0
            spare.append(part.slots)
            self._staged.append(part.entry)
            self._metrics.add("borrowed_tokens", len(part.slots))
        if spare:
            self._cache.token_to_kv_pool_allocator.free(torch.cat(spare))

    def among(self, requests: Iterable[Any]) -> bool:
        """Return whether any of `requests` borrows."""
        return any(pool_row(request) in self._loans for request in requests)

    def flush(self, in_use: bool = True) -> None:
        """Put what has changed into the tables, on the stream that runs the model.

        Parameters
        ----------
        in_use
            False for a batch in which nobody borrows.
        """
        self._tables.in_use = in_use
        for entry in self._staged:
            use_on_this_stream(entry.tensors())
            self._tables.write(entry)
        self._staged.clear()

    def release(self, row: int | None) -> None:
        """End the loan of the request at `row`; its own slots are the caller's business."""
        loan = None if row is None else self._loans.pop(row, None)
        if loan is None:
            return
        for node in loan.nodes:
            self._cache.dec_lock_ref(node)
        self._unused.append(loan.number)
        # In order with what is staged later: the row and the entry may be given out again at once.
        self._staged.append(Entry(loan.row, 0))

    def forget_lenders(self) -> None:
        """Unlock nothing any more: the tree was emptied."""
        for loan in self._loans.values():
            loan.nodes = []

    def _cores(
        self, window: Window, own: Sequence[tuple[Span, Tensor]], free: bool
    ) -> dict[int, Span]:
        """Return the part of each span that is borrowed, by the span's start."""
        known = self._loans.get(pool_row(window.request))
        if known is None and not free:
            self._metrics.add("unborrowed_spans", len(own))
            return {}
        cuts = MOST_CUTS - sum(run.cuts for run in known.borrowed) if known else MOST_CUTS
        cores = {}
        for span, _ in own:
            # The first page is the request's own, so that the tree always has a head to know it by.
            start = max(-(-span.start // PAGE_SIZE), 1) * PAGE_SIZE
            end = span.end // PAGE_SIZE * PAGE_SIZE
            if end - start < LEAST_PAGES * PAGE_SIZE:
                continue
            core = span.part(start, end)
            cuts -= _borrowed(core).cuts
            if cuts < 0:
                break
            cores[span.start] = core
        return cores

    def _lent(
        self,
        row: int,
        number: int,
        own: Sequence[tuple[Span, Tensor]],
        cores: dict[int, Span],
    ) -> Lent:
        known = self._loans.get(row)
        runs = tuple(_borrowed(core) for core in cores.values())
        slots = []
        for span, given in own:
            core = cores.get(span.start)
            if core is not None:
                slots.append(given[core.start - span.start : core.end - span.start])
        borrowed = [*(known.borrowed if known else ()), *runs]
        return Lent(
            row=row,
            number=number,
            runs=runs,
            nodes=tuple(node for core in cores.values() for node, _, _ in core.rows),
            slots=torch.cat(slots).to(torch.int64),
            entry=Entry.of(row, number, borrowed, slots[0].device),
        )


def _borrowed(core: Span) -> Borrowed:
    pieces = []
    for node, offset, count in core.rows:
        # Nodes begin at page borders and hold whole pages, each in order.
        first = offset % PAGE_SIZE
        pages = node.value[offset - first : offset + count : PAGE_SIZE] // PAGE_SIZE
        pieces.append(Piece(pages, first, count))
    return Borrowed(core.start, core.end, core.delta, tuple(pieces))


def _edges(span: Span, slots: Tensor, core: Span | None) -> Placed:
    """Return what of `span` is moved, each part with its slots."""
    if core is None:
        return [(span, slots)]
    return [
        (part, slots[part.start - span.start : part.end - span.start])
        for part in span.without(core.start, core.end)
    ]
