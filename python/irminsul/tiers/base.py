"""Chunks of KV rows -> the questions that every tier answers.

Must not know any implementation, engine or device.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from irminsul.tiers.keys import ChunkRef
from irminsul.tiers.ticket import Ticket
from irminsul.tiers.value import ChunkRows

__all__ = ["Collected", "Counts", "Receive", "Tier"]

# Takes a chunk that has arrived. Its rows may lie in a buffer of the tier: they are valid until the
# call returns.
Receive = Callable[[ChunkRows], None]


class Tier(Protocol):
    """Holds chunks under their keys; every call is batched, returns at once and has a deadline.

    Notes
    -----
    Thread-safe. A tier never raises for what happens outside this process: a store that is down,
    slow or full, a value that fails a check, all are misses and are counted in `counts`. It raises
    for what the caller does wrong, and only then.
    """

    counts: Counts

    def exists(self, refs: Sequence[ChunkRef], timeout: float) -> Ticket[bool]:
        """Ask which chunks are there.

        Parameters
        ----------
        refs : sequence of ChunkRef
            Any number; the tier cuts it into batches.
        timeout : float
            Seconds after which nobody waits for the answer.

        Returns
        -------
        Ticket of bool
            False also means: not known in time.
        """

    def get(self, refs: Sequence[ChunkRef], timeout: float, receive: Receive) -> Ticket[bool]:
        """Fetch chunks.

        Parameters
        ----------
        refs, timeout
            As for `exists`.
        receive : callable
            Called with every chunk that arrives and passes its checks, in time or late, in a thread
            of the tier or before `get` returns; not after `cancel`. It must not block or raise.
            `Collected` keeps copies.

        Returns
        -------
        Ticket of bool
            True: received. False: not there, damaged, or not in time.
        """

    def put(self, chunks: Sequence[ChunkRows], timeout: float) -> Ticket[bool]:
        """Store chunks. The caller must not change their rows until the ticket is done.

        Returns
        -------
        Ticket of bool
            True: stored now, or there already. False: refused, failed, or not known in time.
        """

    def discard(self, ref: ChunkRef) -> bool:
        """Forget one chunk, now or soon; False when that will not happen."""

    def close(self) -> None:
        """Give everything back; calls that are under way become misses."""


class Collected(dict[bytes, ChunkRows]):
    """A `Receive` that keeps a copy of every chunk under its key.

    Examples
    --------
    >>> from irminsul.tiers import HostTier
    >>> found = Collected()
    >>> HostTier(1 << 20).get([], 0.0, found).result(), found
    ([], {})
    """

    def __call__(self, chunk: ChunkRows) -> None:
        """Copy and keep `chunk`."""
        copy = replace(chunk, rows=chunk.rows.copy())
        self[chunk.ref.key] = copy


class Counts:
    """Named counters that any thread may raise."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: Counter[str] = Counter()

    def add(self, name: str, amount: int = 1) -> None:
        """Add `amount` to counter `name`."""
        with self._lock:
            self._values[name] += amount

    def snapshot(self) -> dict[str, int]:
        """Return all counters."""
        with self._lock:
            return dict(self._values)

    def __getitem__(self, name: str) -> int:
        with self._lock:
            return self._values[name]
