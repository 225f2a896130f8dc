"""Chunks -> a bounded block of host memory that keeps the ones that are asked for.

Must not know engines or networks.

Replacement is SIEVE (NSDI 2024): entries stand in a queue by arrival, a hit sets a mark, and a hand
that moves from old to new takes the first entry without a mark. One hit costs one store, new text
that nobody asks for again leaves first, and agent traffic is full of such text.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from irminsul.errors import InvalidParams
from irminsul.tiers.arena import Arena
from irminsul.tiers.base import Counts, Receive
from irminsul.tiers.keys import ChunkRef, RowLayout
from irminsul.tiers.lease import Lease
from irminsul.tiers.memory import block_of
from irminsul.tiers.ticket import Ticket
from irminsul.tiers.value import ChunkRows, rows_shape

__all__ = ["HostTier"]

# Key, ids, numbers and Python objects of one entry; rows are counted to the byte.
ENTRY_OVERHEAD = 1024


@dataclass(eq=False, slots=True)
class _Entry:
    chunk: ChunkRows
    offset: int
    older: _Entry | None = None
    newer: _Entry | None = None
    visited: bool = False
    leases: int = 0
    live: bool = True


class HostTier:
    """A `Tier` in this process's memory.

    Parameters
    ----------
    capacity_bytes : int
        All that rows and ids may take together, at least 1 MiB. The block is reserved at once and
        touched as it fills; pinned, it is touched at once.
    pinned : bool
        Page-lock the block, so that copies to a GPU run beside its work. Needs torch with CUDA.
    on_evict : callable, optional
        Called with the reference of each chunk that leaves, by eviction, `discard` or `clear`. It
        runs under the tier's lock and must not call back.

    Raises
    ------
    InvalidParams
        The capacity is too small, or pinned memory cannot be had.
    """

    def __init__(
        self,
        capacity_bytes: int,
        *,
        pinned: bool = False,
        on_evict: Callable[[ChunkRef], None] | None = None,
    ) -> None:
        if capacity_bytes < 1 << 20:
            raise InvalidParams(f"capacity_bytes must be at least 2**20, got {capacity_bytes}")
        self.counts = Counts()
        self.capacity_bytes = capacity_bytes
        self._owner, self._block = block_of(capacity_bytes, pinned)
        self._arena = Arena(capacity_bytes)
        self._entries: dict[tuple[bytes, RowLayout], _Entry] = {}
        self._oldest: _Entry | None = None
        self._newest: _Entry | None = None
        self._hand: _Entry | None = None
        self._extra = 0
        self._lock = threading.RLock()
        # Entries whose leases nobody has released; appended to without the lock.
        self._given_up: deque[_Entry] = deque()
        self._on_evict = on_evict or (lambda ref: None)

    @property
    def used_bytes(self) -> int:
        """Bytes that entries take: rows, ids and `ENTRY_OVERHEAD` each. Never above capacity."""
        with self._lock:
            self._collect()
            return self._arena.used + self._extra

    def __len__(self) -> int:
        with self._lock:
            return len(self._entries)

    def __contains__(self, ref: ChunkRef) -> bool:
        with self._lock:
            return _index(ref) in self._entries

    def exists(self, refs: Sequence[ChunkRef], timeout: float = 0.0) -> Ticket[bool]:
        """See `Tier.exists`; answered at once, and no sign of use."""
        with self._lock:
            return _answered([_index(ref) in self._entries for ref in refs])

    def get(self, refs: Sequence[ChunkRef], timeout: float, receive: Receive) -> Ticket[bool]:
        """See `Tier.get`; answered before it returns. `lease` gives the rows where they lie."""
        answers = []
        for ref in refs:
            lease = self.lease(ref)
            answers.append(lease is not None)
            if lease is not None:
                receive(lease.chunk)
                lease.release()
        return _answered(answers)

    def put(self, chunks: Sequence[ChunkRows], timeout: float = 0.0) -> Ticket[bool]:
        """See `Tier.put`; copied before it returns. What is there already stays as it is."""
        return _answered([self._insert(chunk) for chunk in chunks])

    def lease(self, ref: ChunkRef) -> Lease | None:
        """Return the chunk where it lies, kept there until released, or None."""
        with self._lock:
            entry = self._entries.get(_index(ref))
            if entry is None:
                self.counts.add("misses")
                return None
            self.counts.add("hits")
            entry.visited = True
            entry.leases += 1
            # Set aside means: to be released by whoever holds the lock next.
            aside = partial(self._given_up.append, entry)
            return Lease(entry.chunk, partial(self._release, entry), aside)

    def peek(self, ref: ChunkRef) -> ChunkRows | None:
        """Return the chunk for a look at its numbers: its rows may be other rows any time."""
        with self._lock:
            entry = self._entries.get(_index(ref))
            return entry.chunk if entry is not None else None

    def discard(self, ref: ChunkRef) -> bool:
        """Forget one chunk; True when it was there."""
        with self._lock:
            entry = self._entries.get(_index(ref))
            if entry is None:
                return False
            self._remove(entry)
            return True

    def clear(self) -> None:
        """Forget every chunk; memory of leased ones comes back with their release."""
        with self._lock:
            for entry in list(self._entries.values()):
                self._remove(entry)

    def close(self) -> None:
        """Forget every chunk."""
        self.clear()

    def _insert(self, chunk: ChunkRows) -> bool:
        with self._lock:
            if self._known(chunk.ref):
                return True
            self._collect()
            offset = self._make_room(chunk)
        if offset is None:
            self.counts.add("refused")
            return False
        # Outside the lock: nobody else knows this piece yet.
        rows = self._block[offset : offset + chunk.rows.nbytes].reshape(rows_shape(chunk.ref))
        np.copyto(rows, chunk.rows)
        held = ChunkRows(chunk.ref, chunk.base_position, chunk.hops, chunk.depth, rows)
        with self._lock:
            entry = _Entry(held, offset)
            if self._known(chunk.ref):
                self._free(entry)
            else:
                self._link(entry)
        self.counts.add("stored")
        return True

    def _known(self, ref: ChunkRef) -> bool:
        entry = self._entries.get(_index(ref))
        if entry is not None:
            entry.visited = True
        return entry is not None

    def _make_room(self, chunk: ChunkRows) -> int | None:
        """Evict until `chunk` fits and reserve its place; None when it cannot."""
        extra = _extra_bytes(chunk.ref)
        if chunk.rows.nbytes + extra > self.capacity_bytes:
            return None
        while True:
            offset = self._arena.take(chunk.rows.nbytes)
            if offset is not None:
                if self._arena.used + self._extra + extra <= self.capacity_bytes:
                    self._extra += extra
                    return offset
                self._arena.give(offset)
            victim = self._victim()
            if victim is None:
                return None
            self._remove(victim)
            self.counts.add("evicted")

    def _victim(self) -> _Entry | None:
        """Move the hand to the first entry without a mark that nobody leases."""
        entry = self._hand or self._oldest
        # Twice round clears every mark; leased entries keep theirs and are passed over.
        for _ in range(2 * len(self._entries) + 1):
            if entry is None:
                entry = self._oldest
                if entry is None:
                    return None
            if not entry.leases and not entry.visited:
                self._hand = entry.newer
                return entry
            entry.visited = entry.visited and bool(entry.leases)
            entry = entry.newer
        return None

    def _link(self, entry: _Entry) -> None:
        entry.older = self._newest
        if self._newest is not None:
            self._newest.newer = entry
        self._newest = entry
        self._oldest = self._oldest or entry
        self._entries[_index(entry.chunk.ref)] = entry

    def _remove(self, entry: _Entry) -> None:
        older, newer = entry.older, entry.newer
        if older is not None:
            older.newer = newer
        else:
            self._oldest = newer
        if newer is not None:
            newer.older = older
        else:
            self._newest = older
        if self._hand is entry:
            self._hand = newer
        del self._entries[_index(entry.chunk.ref)]
        entry.live = False
        if not entry.leases:
            self._free(entry)
        self._on_evict(entry.chunk.ref)

    def _collect(self) -> None:
        """Give back what was put aside."""
        while self._given_up:
            self._release(self._given_up.popleft())

    def _release(self, entry: _Entry) -> None:
        with self._lock:
            entry.leases -= 1
            if not entry.leases and not entry.live:
                self._free(entry)

    def _free(self, entry: _Entry) -> None:
        self._arena.give(entry.offset)
        self._extra -= _extra_bytes(entry.chunk.ref)


def _index(ref: ChunkRef) -> tuple[bytes, RowLayout]:
    # The layout is not part of the key, and rows of another one are other rows.
    return ref.key, ref.space.layout


def _extra_bytes(ref: ChunkRef) -> int:
    return ENTRY_OVERHEAD + ref.tokens.nbytes


def _answered(answers: Sequence[bool]) -> Ticket[bool]:
    ticket = Ticket(len(answers), False, 1.0)
    for index, answer in enumerate(answers):
        ticket.settle(index, answer)
    return ticket
