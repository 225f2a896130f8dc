"""Fetches that begin and end -> what the link carried while it was busy.

Must not know calls or keys. Fetches run side by side and share the link: the time of one says how
long it waited for the others, not how fast the link is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Meter"]

# A link that is never idle is reported on as often as this.
_WINDOW_S = 0.05


class Meter:
    """Reports bytes and seconds of busy stretches; thread-safe.

    Parameters
    ----------
    report : callable
        Takes the bytes that arrived and the seconds that they took.
    clock : callable
        Monotonic seconds.
    """

    def __init__(
        self,
        report: Callable[[int, float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._report = report
        self._clock = clock
        self._lock = threading.Lock()
        self._flying = 0
        self._since = 0.0
        self._bytes = 0

    def begin(self) -> None:
        """Note that a fetch is sent."""
        with self._lock:
            if not self._flying:
                self._since, self._bytes = self._clock(), 0
            self._flying += 1

    def end(self, size_bytes: int) -> None:
        """Note that one of them is over and brought so much."""
        with self._lock:
            now = self._clock()
            self._flying -= 1
            self._bytes += size_bytes
            took = now - self._since
            if self._flying and took < _WINDOW_S:
                return
            carried, self._bytes, self._since = self._bytes, 0, now
        if carried:
            self._report(carried, took)
