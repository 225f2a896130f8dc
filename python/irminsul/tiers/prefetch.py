"""Chunks that a prompt lacks -> what is on its way, and how long it is worth waiting.

Must not know stores, hosts or engines.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from irminsul.tiers.keys import ChunkRef
from irminsul.tiers.ticket import Ticket

__all__ = ["Fetch", "Prefetch", "Wanted"]


@dataclass(frozen=True)
class Wanted:
    """A chunk of a prompt that the host tier lacks.

    Parameters
    ----------
    start : int
        Its position in the prompt.
    ref : ChunkRef
        Which chunk.
    before : ChunkRef, optional
        The chunk that stands before it there: rows of the two may be one run.
    """

    start: int
    ref: ChunkRef
    before: ChunkRef | None


class Fetch:
    """One call of `Tier.get`: what it has brought, and when it last brought something.

    Parameters
    ----------
    wanted : sequence of Wanted
        What was asked for.
    """

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self.news_at = time.monotonic()
        self.ticket: Ticket[bool] | None = None
        self.wanted = wanted
        # Keys of what came and is not in the index yet.
        self.arrived: set[bytes] = set()

    @property
    def done(self) -> bool:
        """True when nothing more is waited for."""
        return self.ticket is not None and self.ticket.done


class Prefetch:
    """Chunks of one prompt on their way to the host tier.

    Parameters
    ----------
    patience_s : float
        Longest time without news.
    most_s : float
        Longest time in all.

    Notes
    -----
    ``done`` turns true when everything that is coming has come, when nothing has come for
    ``patience_s``, or after ``most_s``. What comes later is kept for the next prompt.
    """

    def __init__(self, patience_s: float, most_s: float) -> None:
        now = time.monotonic()
        self._patience_s = patience_s
        self._until = now + most_s
        self._news_at = now
        self._lock = threading.Lock()
        self._fetches: list[Fetch] = []
        # The store has not said yet all that it has.
        self._asking = True

    @property
    def done(self) -> bool:
        """True when there is nothing to wait for, or no point in it."""
        now = time.monotonic()
        if now >= self._until:
            return True
        if self._asking and now < self._news_at + self._patience_s:
            return False
        # A fetch without news for that long is given up, whatever the others do.
        coming = [fetch for fetch in self._fetches if not fetch.done]
        return all(now >= fetch.news_at + self._patience_s for fetch in coming)

    @property
    def fetches(self) -> list[Fetch]:
        """What it waits for; for `ChunkPool`."""
        return self._fetches

    @property
    def news_at(self) -> float:
        """When something was last heard: an answer of the store, or a chunk (monotonic)."""
        return max([self._news_at, *(fetch.news_at for fetch in self._fetches)])

    @property
    def left_s(self) -> float:
        """Seconds that are left at most."""
        return max(0.0, self._until - time.monotonic())

    def expect(self, fetches: list[Fetch], *, more: bool = False) -> None:
        """Wait for these fetches too, and for more answers only if `more`; for `Fetcher`."""
        with self._lock:
            self._fetches = [*self._fetches, *fetches]
            self._news_at = time.monotonic()
            self._asking = more
