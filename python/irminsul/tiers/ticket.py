"""A call to a tier -> a handle that always has an answer by its deadline.

Must not know what is asked or who answers. No thread is needed to expire a ticket: whoever looks at
one after its deadline sees what has arrived, and defaults for the rest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Ticket"]

T = TypeVar("T")


class Ticket(Generic[T]):
    """Answers of one batched call, thread-safe.

    Parameters
    ----------
    size : int
        Number of answers.
    default : T
        Stands for an answer that is a miss, failed, late or cancelled.
    timeout : float
        Seconds from now until the deadline; 0 or less is a ticket that has expired already.

    Notes
    -----
    An answer that comes after the deadline or after `cancel` changes nothing here. A tier may still
    keep what came late for the next caller.
    """

    def __init__(self, size: int, default: T, timeout: float) -> None:
        self.deadline = time.monotonic() + timeout
        self._answers: list[T] = [default] * size
        self._open = set(range(size))
        self._cancelled = False
        self._late = False
        self._condition = threading.Condition()
        self._callbacks: list[Callable[[], None]] = []

    @property
    def done(self) -> bool:
        """True when no answer can change any more: all there, cancelled, or past the deadline."""
        with self._condition:
            return self._is_done()

    @property
    def cancelled(self) -> bool:
        """True after `cancel`."""
        return self._cancelled

    @property
    def expired(self) -> bool:
        """True when answers were missing at the deadline."""
        with self._condition:
            return self._late or (bool(self._open) and time.monotonic() >= self.deadline)

    def result(self, timeout: float | None = None) -> list[T]:
        """Wait until done, at most `timeout` seconds and never beyond the deadline.

        Parameters
        ----------
        timeout : float, optional
            0 looks without waiting.

        Returns
        -------
        list
            One answer per item in the order asked; the default where none is there.
        """
        until = self.deadline
        if timeout is not None:
            until = min(until, time.monotonic() + timeout)
        with self._condition:
            while not self._is_done() and (left := until - time.monotonic()) > 0:
                self._condition.wait(left)
            return list(self._answers)

    def cancel(self) -> None:
        """Want no more answers; what was not yet sent is not sent."""
        with self._condition:
            self._cancelled = True
            self._condition.notify_all()

    def settle(self, index: int, answer: T) -> bool:
        """Give answer `index`; for tiers. Returns whether it counted."""
        callbacks: list[Callable[[], None]] = []
        with self._condition:
            if index not in self._open:
                return False
            counted = not self._is_done()
            self._open.discard(index)
            if counted:
                self._answers[index] = answer
            else:
                self._late = True
            if not self._open:
                callbacks, self._callbacks = self._callbacks, []
                self._condition.notify_all()
        for callback in callbacks:
            callback()
        return counted

    def fail(self, index: int) -> bool:
        """Settle answer `index` with the default; for tiers."""
        return self.settle(index, self._answers[index])

    def when_over(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when the tier has nothing more to say: every answer is settled.

        That may be after the deadline; `result` then shows what came in time. It runs in the thread
        that settles the last answer, or at once when all are settled, and must neither block nor
        raise. A tier settles every answer of every call sooner or later, whatever happens.
        """
        with self._condition:
            if self._open:
                self._callbacks.append(callback)
                return
        callback()

    def _is_done(self) -> bool:
        return self._cancelled or not self._open or time.monotonic() >= self.deadline
