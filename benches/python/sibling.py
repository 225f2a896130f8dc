"""A short vector loop -> whether another thread shares this core at the moment.

Knows nothing of what is measured.
"""

from __future__ import annotations

import time

import numpy as np


class Sibling:
    """Tells whether another thread shares this core at the moment.

    Two threads of one core share its ports: beside a busy one, vector work takes nearly twice as
    long, in processor time too. A short loop of nothing else says which a sample was taken on.
    """

    # One in so many loops was faster than what counts as the time on a core of one's own: where a
    # hypervisor takes time away, the clock is wrong by a sixth now and then.
    BELIEVED = 100
    SHARED = 1.12

    def __init__(self) -> None:
        self._ids = np.arange(2048, dtype=np.int32)
        self._out = self._ids.copy()
        self._times: list[int] = []
        for _ in range(40):
            for _ in range(200):
                self.probe()
            time.sleep(0.02)
        self._alone = sorted(self._times)[len(self._times) // self.BELIEVED]

    def probe(self) -> int:
        """Return the loop's time in ns."""
        for _ in range(2):  # the first time finds nothing in the caches
            start = time.thread_time_ns()
            for _ in range(12):
                np.multiply(self._ids, self._ids, out=self._out)
            taken = time.thread_time_ns() - start
        self._times.append(taken)
        return taken

    def is_alone(self, taken: int) -> bool:
        """Whether the core was this thread's alone when the loop took so long."""
        return taken <= self.SHARED * self._alone
