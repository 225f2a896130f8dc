"""Small jobs of the threads that talk to a store -> a thread of their own, the urgent ones first.

Must not know what they do. The threads of a store answer everybody; what takes them a while and can
be left out when there is too much of it goes here.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

__all__ = ["Aside"]

logger = logging.getLogger(__name__)

Job = Callable[[], None]


class Aside:
    """Runs jobs one after the other in a thread that ends with `close`.

    Parameters
    ----------
    most : int
        Jobs that may wait, and as many urgent ones; more are refused.
    """

    def __init__(self, most: int = 256) -> None:
        self._most = most
        self._urgent: deque[Job] = deque()
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def run(self, job: Job, *, urgent: bool = False) -> bool:
        """Run `job` soon; False, without effect, when too many wait or after `close`.

        Urgent is what somebody waits for.
        """
        queue = self._urgent if urgent else self._jobs
        with self._changed:
            if self._closed or len(queue) >= self._most:
                return False
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="irminsul-aside", daemon=True
                )
                self._thread.start()
            queue.append(job)
            self._changed.notify()
            return True

    def close(self) -> None:
        """Drop what waits and end the thread."""
        with self._changed:
            self._closed = True
            self._jobs.clear()
            self._urgent.clear()
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(5.0)

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (self._urgent or self._jobs):
                    if self._closed:
                        return
                    self._changed.wait()
                job = (self._urgent or self._jobs).popleft()
            try:
                job()
            except Exception:
                logger.exception("irminsul: a job beside the store failed")
