"""Recorded sessions and a server -> how long each call took.

Must not know files, tokenizers or reports. The loop is closed: every worker sends the calls of one
session in order, each as soon as the answer to the one before is complete, then takes the next
session.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from irminsul.errors import ServerFailed
from irminsul.live.client import Client, Prompt, Reply

__all__ = ["Replay", "Side", "replay"]


@dataclass(frozen=True, slots=True)
class Side:
    """One way to serve: a server, and what is asked of it.

    Attributes
    ----------
    name
        For the report.
    client
        The server.
    reuse
        As in `Client.generate`.
    """

    name: str
    client: Client
    reuse: bool | None


@dataclass(slots=True)
class Replay:
    """What one replay of all sessions found.

    Attributes
    ----------
    replies
        One per answered call, in the order of completion.
    failures
        What went wrong with the others.
    seconds
        Wall time of the whole replay.
    """

    replies: list[Reply] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


def replay(
    side: Side,
    sessions: Sequence[Sequence[Prompt]],
    *,
    workers: int,
    max_tokens: int,
    key: str,
    progress: Callable[[], None] = lambda: None,
) -> Replay:
    """Send all sessions, `workers` of them at a time.

    Parameters
    ----------
    side
        Where and how.
    sessions
        Prompts of each session, in order.
    workers
        Sessions that run at once.
    max_tokens
        Length of every answer.
    key
        ``extra_key`` of all calls: a fresh one starts from an empty cache.
    progress
        Called after every call, from the worker's thread.

    Returns
    -------
    Replay
        A call that fails is noted and its session goes on with the next one.
    """
    waiting: queue.SimpleQueue[Sequence[Prompt]] = queue.SimpleQueue()
    for session in sessions:
        waiting.put(session)
    found = Replay()

    def work() -> None:
        while True:
            try:
                session = waiting.get_nowait()
            except queue.Empty:
                return
            for prompt in session:
                _call(side, prompt, max_tokens, key, found)
                progress()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(workers)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found.seconds = time.perf_counter() - began
    return found


def _call(side: Side, prompt: Prompt, max_tokens: int, key: str, found: Replay) -> None:
    try:
        reply = side.client.generate(
            prompt, max_tokens=max_tokens, key=key, reuse=side.reuse, stream=True
        )
    except ServerFailed as error:
        found.failures.append(str(error))
        return
    found.replies.append(reply)
