"""Requests that arrive together -> one prefill batch, by letting the first wait for the others.

Must not know plans, tensors or SGLang's scheduler beyond a request and how many wait with it.

A prompt that is mostly known is prefilled in the time that starting the kernels takes, for one
request or for eight. SGLang begins with whoever is there first, and the others of a burst wait for
a second round of the same length. Clients in a closed loop make such bursts: those that decode
together end together and ask again within milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

MEMORY = 1.0
"""Seconds for which the number of clients seen at once is expected to come back."""

MOST_GAPS = 5
"""Longest wait, in gaps between two arrivals."""


class Gathering:
    """Says how long a burst is waited for.

    Parameters
    ----------
    gap
        Seconds without an arrival that end a burst; 0 waits for nobody.
    clock
        Seconds, for tests.

    Notes
    -----
    Nobody waits longer than ``MOST_GAPS * gap``, and nobody waits at all who is as many as were
    seen at once in the last second: a single client never does. Ask only while nothing runs: the
    scheduler comes by once in a decoding step, which may be longer than any gap. Time differs
    between ranks, so ranks that have to admit the same requests must not use this.
    """

    def __init__(self, gap: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._gap = gap
        self._clock = clock
        self._most = 0
        self._most_at = -MEMORY
        self._began = 0.0
        self._arrived = 0.0
        self._waiting = 0

    def saw(self, clients: int) -> None:
        """Remember that so many requests were being served at once."""
        now = self._clock()
        if clients >= self._most or now - self._most_at > MEMORY:
            self._most, self._most_at = clients, now

    def waits(self, waiting: int) -> bool:
        """Return whether a batch that could begin now should wait for more than `waiting`."""
        now = self._clock()
        if not self._gap or now - self._most_at > MEMORY or waiting >= self._most:
            self._waiting = 0
            return False
        if not self._waiting:
            self._began = now
        if waiting > self._waiting:
            self._waiting, self._arrived = waiting, now
        quiet, late = now - self._arrived >= self._gap, now - self._began >= MOST_GAPS * self._gap
        if quiet or late:
            self._waiting = 0
        return not (quiet or late)
