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
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from irminsul.attention import PAGE_SIZE
from irminsul.integrations.sglang import testing
from irminsul.integrations.sglang.batch.planner import Placed
from irminsul.integrations.sglang.compat import pool_row
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.share.loans import Lent, Loan, Part
from irminsul.integrations.sglang.share.pages import give_back
from irminsul.integrations.sglang.share.tables import (
    MOST_CUTS,
    Borrowed,
    Entry,
    LoanTables,
    Piece,
    Update,
)
from irminsul.integrations.sglang.spans import Span, Window
from irminsul.integrations.sglang.streams import use_on_this_stream

LEAST_PAGES = 4
"""Fewest pages worth borrowing in one piece: an offset costs one tile more, a copy costs little."""

Cores = dict[int, tuple[Span, Borrowed]]


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
    moved
        For tests: requests whose id starts so borrow nothing.
    ranks
        How many serve the same requests, each from a pool of its own.
    """

    def __init__(
        self, cache: Any, tables: LoanTables, metrics: Metrics, moved: str = "", ranks: int = 1
    ) -> None:
        self._cache = cache
        self._tables = tables
        self._metrics = metrics
        self._moved = moved
        self._ranks = ranks
        self._loans: dict[int, Loan] = {}
        self._tokens = 0
        self._unused = list(range(tables.entries, 0, -1))
        # Slots of pages that nobody needs and that the allocator did not take back yet.
        self._spare: list[Tensor] = []
        # Entries of new loans, and rows of ended ones, in the order in which they came about.
        self._staged: list[Update | int] = []

    @property
    def tokens(self) -> int:
        """Positions of running requests for which no slot is taken."""
        return self._tokens - PAGE_SIZE * sum(map(len, self._spare))

    def at(self, row: int | None) -> Loan | None:
        """Return what the request at `row` of ``req_to_token`` borrows."""
        return None if row is None else self._loans.get(row)

    def divide(self, windows: Sequence[Window], placed: Placed) -> tuple[Placed, Lent | None]:
        """Return what of `placed` is moved, and what is borrowed; nothing is changed yet.

        Parameters
        ----------
        windows
            What each request prefills.
        placed
            All their spans in order, each with the slots of its tokens.
        """
        moved: Placed = []
        parts: list[Part] = []
        unused, rest = list(self._unused), iter(placed)
        for window in windows:
            own = [next(rest) for _ in window.spans]
            cores = self._cores(window, own, bool(unused))
            for span, slots in own:
                moved += _edges(span, slots, cores.get(span.start, (None, None))[0])
            if cores:
                row = pool_row(window.request)
                loan = self._loans.get(row)
                number = unused.pop() if loan is None else loan.number
                parts.append(_part(row, number, own, cores))
        return moved, Lent(parts, self._update(parts), _joined(parts)) if parts else None

    def secure(self, lent: Lent | None) -> None:
        """Lock the lenders of `lent` and take its entries; changes nothing when it raises.

        Afterwards either `lend` or `renounce` is due.
        """
        if lent is None:
            return
        with ExitStack() as undo:
            for part in lent.parts:
                for node in part.nodes:
                    self._cache.inc_lock_ref(node)
                    undo.callback(self._cache.dec_lock_ref, node)
                if part.row not in self._loans:
                    self._unused.remove(part.number)
                    undo.callback(self._unused.append, part.number)
            undo.pop_all()

    def renounce(self, lent: Lent | None) -> None:
        """Undo `secure`."""
        for part in () if lent is None else lent.parts:
            for node in part.nodes:
                self._cache.dec_lock_ref(node)
            if part.row not in self._loans:
                self._unused.append(part.number)

    def lend(self, lent: Lent | None) -> None:
        """Say that requests borrow what was secured, and give back the slots this saves.

        Raises only what `_give_back` does, where there are other ranks.
        """
        if lent is None:
            return
        for part in lent.parts:
            self._lend(part)
        self._staged.append(lent.update)
        self._spare.append(lent.spare)
        self._give_back()

    def _lend(self, part: Part) -> None:
        loan = self._loans.setdefault(part.row, Loan(part.row, part.number))
        loan.nodes += part.nodes
        loan.borrowed += part.runs
        table = self._cache.req_to_token_pool.req_to_token
        for run in part.runs:
            # The pool's unused row: whoever reads here by mistake finds nobody's rows, and
            # whoever writes harms none.
            table[part.row, run.start : run.end] = 0
        tokens = sum(run.end - run.start for run in part.runs)
        self._tokens += tokens
        self._metrics.add("borrowed_tokens", tokens)

    def _give_back(self) -> None:
        """Give spare pages to the allocator; what it refuses stays taken until the next time.

        Raises what the allocator does where there are other ranks: their pools would have more
        room than this one, so they would admit other requests and wait for it for ever.
        """
        try:
            while self._spare:
                give_back(self._cache.token_to_kv_pool_allocator, self._spare[0])
                del self._spare[0]
        except Exception:
            if self._ranks > 1:
                raise
            self._metrics.fallback("lending", "pages that are read elsewhere stay taken for now")
        self._metrics.gauge("borrowing_requests", len(self._loans))
        self._metrics.gauge("saved_slots", self.tokens)

    def _update(self, parts: Sequence[Part]) -> Update:
        """Return the tables' entries of requests with what they borrow already and will."""
        entries = []
        for part in parts:
            loan = self._loans.get(part.row)
            known = loan.borrowed if loan is not None else []
            entries.append(Entry(part.row, part.number, [*known, *part.runs]))
        return self._tables.prepare(entries)

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
        for staged in self._staged:
            if isinstance(staged, Update):
                use_on_this_stream(staged.tensors())
                self._tables.write(staged)
            else:
                self._tables.forget(staged)
        self._staged.clear()

    def release(self, row: int | None) -> None:
        """End the loan of the request at `row`; its own slots are the caller's business."""
        loan = None if row is None else self._loans.pop(row, None)
        if loan is None:
            return
        for node in loan.nodes:
            self._cache.dec_lock_ref(node)
        self._unused.append(loan.number)
        self._tokens -= loan.tokens
        # In order with what is staged later: the row and the entry may be given out again at once.
        self._staged.append(loan.row)
        self._give_back()

    def forget_lenders(self) -> None:
        """Unlock nothing and give nothing back any more: tree and allocator were emptied."""
        self._spare.clear()
        for loan in self._loans.values():
            loan.nodes = []

    def _cores(self, window: Window, own: Sequence[tuple[Span, Tensor]], free: bool) -> Cores:
        """Return the part of each span that is borrowed, by the span's start."""
        if testing.selected(window.request, self._moved):
            return {}
        known = self._loans.get(pool_row(window.request))
        if known is None and not free:
            self._metrics.add("unborrowed_spans", len(own))
            return {}
        cuts = MOST_CUTS - sum(run.cuts for run in known.borrowed) if known else MOST_CUTS
        cores = {}
        for span, _ in own:
            # The first page is the request's own, so that the tree always has a head to know it by.
            start = max(-(-span.start // PAGE_SIZE), 1) * PAGE_SIZE
            # What a retracted request had answered may be freed by SGLang apart from the rest.
            end = min(span.end, len(window.request.origin_input_ids)) // PAGE_SIZE * PAGE_SIZE
            if end - start < LEAST_PAGES * PAGE_SIZE:
                continue
            core = span.part(start, end)
            run = _borrowed(core)
            cuts -= run.cuts
            if cuts < 0:
                break
            cores[span.start] = core, run
        return cores


def _joined(parts: Sequence[Part]) -> Tensor:
    return torch.cat([slots for part in parts for slots in part.spare])


def _part(row: int, number: int, own: Sequence[tuple[Span, Tensor]], cores: Cores) -> Part:
    spare = []
    for span, given in own:
        if span.start in cores:
            _, run = cores[span.start]
            spare.append(given[run.start - span.start : run.end - span.start : PAGE_SIZE])
    return Part(
        row=row,
        number=number,
        runs=tuple(run for _, run in cores.values()),
        nodes=tuple(node for core, _ in cores.values() for node in _ends(core)),
        spare=spare,
    )


def _borrowed(core: Span) -> Borrowed:
    pieces = []
    for node, offset, count in core.rows:
        # Nodes begin at page borders and hold whole pages, each in order.
        first = offset % PAGE_SIZE
        heads = node.value[offset - first : offset + count : PAGE_SIZE]
        pieces.append(Piece(heads, first, count))
    return Borrowed(core.start, core.end, core.delta, tuple(pieces))


def _ends(core: Span) -> list[Any]:
    """Return the nodes to lock: those above them on one path are locked with them."""
    nodes = [node for node, _, _ in core.rows]
    following = [*nodes[1:], None]
    return [
        node
        for node, below in zip(nodes, following, strict=True)
        if below is None or below.parent is not node
    ]


def _edges(span: Span, slots: Tensor, core: Span | None) -> Placed:
    """Return what of `span` is moved, each part with its slots."""
    if core is None:
        return [(span, slots)]
    return [
        (part, slots[part.start - span.start : part.end - span.start])
        for part in span.without(core.start, core.end)
    ]
