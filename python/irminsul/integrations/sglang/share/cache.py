"""The radix tree where requests borrow pages -> own rows inserted and freed, borrowed ones never.

Knows how SGLang publishes and releases a request's rows; must not know tiles or attention.

SGLang inserts and frees a request's row as if every slot were its own. Here the tree learns of a
borrower only up to its first borrowed position. When it ends, its own runs behind that become nodes
without their prefix: donors at the positions they were computed at, found by content like any other
and by no prefix match.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from typing import Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import InsertParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

from irminsul.attention import PAGE_SIZE
from irminsul.integrations.sglang.compat import pool_row
from irminsul.integrations.sglang.share.lending import Sharing
from irminsul.integrations.sglang.share.loans import Interval, Loan
from irminsul.integrations.sglang.share.pages import give_back
from irminsul.integrations.sglang.tree.cache import IrminsulRadixCache
from irminsul.integrations.sglang.tree.nodes import record_of

# Stands in the extra_key of nodes without their prefix, before a digest of that prefix.
_PIECE = "\0irminsul-piece-"


class SharingRadixCache(IrminsulRadixCache):
    """An `IrminsulRadixCache` whose running requests may borrow pages of its nodes."""

    # Until the attention backend's tables are there; `RadixCache` resets itself before.
    sharing: Sharing | None = None

    def __init__(self, *args: Any) -> None:
        # Clients choose extra keys: without a secret they could name another's piece.
        self._secret = os.urandom(16)
        super().__init__(*args)

    def reset(self) -> None:
        """Empty the tree; what requests still borrow is nobody's any more."""
        super().reset()
        if self.sharing is not None:
            self.sharing.forget_lenders()

    def protected_size(self) -> int:
        """Return the locked tokens, less those that SGLang counts for borrowers too.

        SGLang takes a running request to own all slots behind its cached prefix. The ones it has
        given back are free as well, so the sum of all parts is right with this.
        """
        borrowed = 0 if self.sharing is None else self.sharing.tokens
        return int(super().protected_size()) - borrowed

    def cache_unfinished_req(self, req: Any, *args: Any, **kwargs: Any) -> None:
        """Publish a borrower up to its first borrowed position (before 0.5.22)."""
        loan = self._loan(req)
        if loan is None:
            super().cache_unfinished_req(req, *args, **kwargs)
            return
        ids = req.get_fill_ids()
        req.get_fill_ids = lambda: ids[: loan.first]
        try:
            super().cache_unfinished_req(req, *args, **kwargs)
        finally:
            del req.get_fill_ids
        rest = self._row(loan)[loan.first : len(ids)].to(torch.int64)
        # The next round of the prompt goes on behind all of it.
        req.prefix_indices = torch.cat([req.prefix_indices.to(torch.int64), rest])

    def cache_finished_req(
        self, req: Any, is_insert: bool = True, *, kv_len_to_handle: int
    ) -> None:
        """Publish and free the own rows of a borrower that ends (before 0.5.21)."""
        loan = self._loan(req)
        if loan is None:
            super().cache_finished_req(req, is_insert, kv_len_to_handle=kv_len_to_handle)
            return
        first = min(loan.first, kv_len_to_handle)
        super().cache_finished_req(req, is_insert, kv_len_to_handle=first)
        if is_insert:
            ids = req.origin_input_ids + req.output_ids
            self._keep(req, loan, ids[:kv_len_to_handle])
        row = self._row(loan)
        # Each part begins at a page border.
        heads = [row[start:end:PAGE_SIZE] for start, end in loan.own(first, kv_len_to_handle)]
        if heads:
            give_back(self.token_to_kv_pool_allocator, torch.cat(heads))
        self._release(loan)

    def insert_req(self, req: Any, *, up_to: int) -> None:
        """Publish the own rows of a borrower that ends (0.5.21)."""
        loan = self._loan(req)
        super().insert_req(req, up_to=up_to if loan is None else min(up_to, loan.first))
        if loan is not None:
            self._keep(req, loan, (req.origin_input_ids + req.output_ids)[:up_to])

    def checkpoint(self, req: Any, *, up_to: int) -> None:
        """Publish a borrower up to its first borrowed position (0.5.22 and later)."""
        loan = self._loan(req)
        super().checkpoint(req, up_to=up_to if loan is None else min(up_to, loan.first))
        if loan is not None and req.finished():
            self._keep(req, loan, req.full_untruncated_fill_ids[:up_to])

    def free_kv_row(self, kv: Any, ranges: list[Interval]) -> None:
        """Free the own slots of a row (0.5.19 and later)."""
        loan = None if self.sharing is None else self.sharing.at(kv.req_pool_idx)
        if loan is not None:
            ranges = [part for start, end in ranges for part in loan.own(start, end)]
        super().free_kv_row(kv, ranges)

    def on_release(self, req: Any, **kwargs: Any) -> None:
        """End the loan of a request whose row is freed (0.5.21 and later)."""
        super().on_release(req, **kwargs)
        loan = self._loan(req)
        if loan is not None:
            self._release(loan)

    def _loan(self, req: Any) -> Loan | None:
        return None if self.sharing is None else self.sharing.at(pool_row(req))

    def _release(self, loan: Loan) -> None:
        if self.sharing is not None:
            self.sharing.release(loan.row)

    def _row(self, loan: Loan) -> torch.Tensor:
        row: torch.Tensor = self.req_to_token_pool.req_to_token[loan.row]
        return row

    def _keep(self, req: Any, loan: Loan, ids: array[int]) -> None:
        """Let the tree take over the whole pages of `ids` that `req` owns behind its first loan."""
        end = len(ids) // PAGE_SIZE * PAGE_SIZE
        for start, stop in loan.own(loan.first, end):
            known = self._insert_piece(req, ids, start, stop, self._row(loan)[start:stop])
            # What the tree has already stays the request's to free.
            if start + known < stop:
                loan.kept.append((start + known, stop))

    def _insert_piece(
        self, req: Any, ids: array[int], start: int, stop: int, slots: torch.Tensor
    ) -> int:
        """Insert positions ``[start, stop)`` below a key that names what comes before them.

        Returns
        -------
        int
            How many of them the tree already had.
        """
        before = hashlib.blake2b(ids[:start].tobytes(), key=self._secret, digest_size=16)
        marked = f"{req.extra_key or ''}{_PIECE}{before.hexdigest()}"
        key = RadixKey(ids[start:stop], marked)
        if hasattr(key, "cache_salt"):
            key.cache_salt = req.cache_salt
        priority = getattr(req, "priority", 0) or 0
        # Not this class's insert: these nodes do not begin at position 0.
        result = RadixCache.insert(
            self, InsertParams(key=key, value=slots.to(torch.int64), priority=priority)
        )
        moved = getattr(req, "irm_moved", [])
        namespace = self._record_namespace(req)
        leaf, root = result.last_device_node, self.root_node
        before_it = record_of(req.last_node)
        depth = before_it.depth if before_it is not None else 0
        self.mirror.guard(self.mirror.record, leaf, root, namespace, moved, start, depth)
        return int(result.prefix_len)
