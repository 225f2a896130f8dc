"""Slots that rows are written to and freed -> what borrowers' positions hold, and what must hold.

For every slot the truth is kept: token, position, tenant, and how approximate its row would be; a
free slot holds nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from irminsul.attention import PAGE_SIZE

PAGES = 110
SIZE = PAGES * PAGE_SIZE
NOTHING = -1
TOKEN, POSITION, TENANT, DEPTH, HOPS = range(5)


class Truth:
    """What the rows of one pool hold; subclasses have SGLang's parts."""

    cache: Any
    pool: Any
    sharing: Any
    table: torch.Tensor
    tables: Any

    def __init__(self) -> None:
        self.truth = torch.full((5, SIZE + PAGE_SIZE), NOTHING)
        self.running: list[Any] = []
        self.facts: dict[str, Any] = {"lies": 0, "shallow": 0, "read": 0}

    def row_of(self, request: Any) -> int | None:
        row: int | None = self.held(request).req_pool_idx
        return row

    def held(self, request: Any) -> Any:
        """Return where this release keeps what a request holds (0.5.19 moved it)."""
        return request.kv if hasattr(request.kv, "req_pool_idx") else request

    def length(self, request: Any) -> int:
        return int(request.kv.kv_allocated_len)

    def fill(self, slots: Any, ids: Any, places: Any, tenant: int, depth: int) -> None:
        for kind, value in ((TOKEN, ids), (POSITION, places), (TENANT, tenant), (DEPTH, depth)):
            self.truth[kind, slots] = value
        self.truth[HOPS, slots] = 0

    def move(self, span: Any, target: torch.Tensor) -> None:
        rows = self.truth[:, self.source(span)]
        rows[POSITION] += span.delta
        rows[DEPTH] += 1
        rows[HOPS] += bool(span.delta)
        self.truth[:, target] = rows

    def source(self, span: Any) -> torch.Tensor:
        return torch.cat([node.value[at : at + count] for node, at, count in span.rows])

    def free_pages(self) -> torch.Tensor:
        if hasattr(self.pool, "get_all_free_pages"):
            return self.pool.get_all_free_pages()
        return torch.cat([self.pool.free_pages, self.pool.release_pages])

    def poison(self) -> None:
        slots = (self.free_pages()[:, None] * PAGE_SIZE + torch.arange(PAGE_SIZE)).flatten()
        self.truth[:, slots] = NOTHING

    def check(self) -> None:
        free = self.free_pages()
        assert 0 not in free
        assert len(free.unique()) == len(free)
        own = 0
        for request in self.running:
            self.read(request)
            own += -(-self.length(request) // PAGE_SIZE) * PAGE_SIZE
            own -= self.held(request).cache_protected_len
        parts = self.pool.available_size(), self.cache.evictable_size(), self.cache.protected_size()
        assert sum(parts) + own == SIZE, (*parts, own)

    def seen(self, request: Any, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the slot and the rotation of each position, as attention would read them."""
        row = torch.tensor([self.row_of(request)])
        table = self.tables.compose(self.table, row, torch.tensor([length], dtype=torch.int32))
        tiles = table.tiles[: int(table.count[0])].long()
        lo, hi = tiles[:, 1] & 0xFFFF, tiles[:, 1] >> 16
        page, delta, pos0, first = (
            part.repeat_interleave(hi - lo) for part in (tiles[:, 0], tiles[:, 2], tiles[:, 3], lo)
        )
        starts = (hi - lo).cumsum(0) - (hi - lo)
        inside = torch.arange(len(page)) - starts.repeat_interleave(hi - lo)
        assert torch.equal(pos0 + inside, torch.arange(length))
        return page * PAGE_SIZE + first + inside, delta

    def context(self, request: Any, length: int) -> int:
        """Return how approximate the first `length` rows of a request are."""
        if not length:
            return 0
        slots, _ = self.seen(request, length)
        depth = self.truth[DEPTH, slots]
        loan = self.sharing.at(self.row_of(request))
        for run in loan.borrowed if loan is not None else ():
            depth[run.start : run.end] += 1
        return int(depth.max())

    def read(self, request: Any) -> None:
        """Ask the tiles of `request` what its positions hold."""
        length = self.length(request)
        slots, deltas = self.seen(request, length)
        truth = self.truth[:, slots]
        ids = torch.tensor([*request.origin_input_ids, *request.output_ids][:length])
        wrong = (truth[TOKEN] != ids) | (truth[POSITION] + deltas != torch.arange(length))
        wrong |= truth[TENANT] != request.tenant
        if request.exact:
            wrong |= truth[DEPTH] != 0
        self.facts["lies"] += int(wrong.sum())
        self.facts["read"] += length
