"""Calls -> a client process that is started, watched, ended and started again.

Must not know what a call means: it has keys, pieces of shared memory and someone who wants codes.

As many threads as the client has workers send: they wait for room in the shared block, let the
call fill its pieces, and write the request. As many check what comes: both touch every byte, and
one core does that hardly faster than Mooncake moves it. One thread watches: it starts the client,
reads replies, and ends the client when it hangs, dies or reports that the store is away. Callers
only put calls in a queue.
"""

from __future__ import annotations

import itertools
import json
import logging
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from irminsul.tiers.base import Counts
from irminsul.tiers.mooncake.calls import Call
from irminsul.tiers.mooncake.process import ClientProcess
from irminsul.tiers.mooncake.room import Room
from irminsul.tiers.mooncake.settings import MooncakeSettings

__all__ = ["Link"]

logger = logging.getLogger(__name__)

# Mooncake's codes for a master that does not answer; seen with it killed and with it stopped.
_AWAY = (-900, -901)


class Link:
    """Sends calls to Mooncake and brings their codes back.

    Parameters
    ----------
    settings : MooncakeSettings
        What to start and what to spend.
    counts : Counts
        Counts ``down``, ``full``, ``hung`` and ``starts``.
    """

    def __init__(self, settings: MooncakeSettings, counts: Counts) -> None:
        self._settings = settings
        self._counts = counts
        self._room = Room(settings.arena_bytes)
        self._queues: dict[str, deque[Call]] = {"ask": deque(), "get": deque(), "put": deque()}
        self._queued_bytes = 0
        self._flying: dict[int, Call] = {}
        # Calls whose pieces a thread of this process fills, or reads after their replies.
        self._sending: set[Call] = set()
        self._settling: set[Call] = set()
        self._client: ClientProcess | None = None
        self._closed = threading.Event()
        self._changed = threading.Condition()
        senders = [("irminsul-send", self._send)] * settings.workers
        self._checkers = ThreadPoolExecutor(settings.workers, "irminsul-check")
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for name, target in (*senders, ("irminsul-watch", self._watch))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def up(self) -> bool:
        """True while calls reach the store, as far as is known."""
        return self._client is not None

    @property
    def pending(self) -> int:
        """Number of calls that are queued or under way."""
        with self._changed:
            return self._pending()

    @property
    def queued_bytes(self) -> int:
        """Bytes of rows that wait to be sent."""
        return self._queued_bytes

    def submit(self, call: Call) -> bool:
        """Queue `call`; False, without effect, when the store is away or a bound is reached."""
        with self._changed:
            if self._client is None or self._closed.is_set():
                self._counts.add("down", len(call.keys))
                return False
            size = call.held_bytes
            limits = self._settings
            if (
                self._pending() >= limits.queue_calls
                or self._queued_bytes + size > limits.queue_bytes
            ):
                self._counts.add("full", len(call.keys))
                return False
            self._queued_bytes += size
            self._queues[call.queue].append(call)
            self._changed.notify_all()
            return True

    def wait_until_up(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the store; for tools and tests, not for engines."""
        with self._changed:
            return self._changed.wait_for(lambda: self._client is not None, timeout)

    def close(self) -> None:
        """End all threads and the client; calls that are left fail."""
        with self._changed:
            self._closed.set()
            client = self._client
            self._changed.notify_all()
        if client is not None:
            client.kill()
        for thread in self._threads:
            thread.join(5.0)
        self._checkers.shutdown()
        with self._changed:
            # Nobody is left to send them; whoever waits is told.
            for call in itertools.chain(*self._queues.values()):
                self._finish(call, None)
            for queue in self._queues.values():
                queue.clear()
        self._room.close()

    def _pending(self) -> int:
        return sum(map(len, (*self._queues.values(), self._flying, self._settling)))

    # The sending threads.

    def _send(self) -> None:
        while True:
            with self._changed:
                while (call := self._next()) is None:
                    if self._closed.is_set():
                        return
                    waiting = any(self._queues.values())
                    self._changed.wait(0.05 if waiting else None)
                client = self._client
                self._sending.add(call)
                self._flying[call.number] = call
            self._transmit(call, client)

    def _next(self) -> Call | None:
        """Take the next call that has, or needs, no room to wait for."""
        for queue in self._queues.values():
            while queue:
                call = queue[0]
                if call.abandoned or self._client is None:
                    queue.popleft()
                    self._queued_bytes -= call.held_bytes
                    self._finish(call, None)
                    continue
                if not self._room.place(call):
                    break
                queue.popleft()
                return call
        return None

    def _transmit(self, call: Call, client: ClientProcess | None) -> None:
        try:
            call.fill(self._room.pieces(call))
            call.sent_at = time.monotonic()
            call.hangs_at = call.sent_at + self._settings.hang_s + sum(call.sizes) / (16 << 20)
            if client is not None:
                client.send(json.dumps(call.request()).encode())
        except OSError:
            pass  # the client is gone; the watching thread sees that and fails its calls
        except Exception:  # a chunk that cannot be written must not end this thread
            logger.exception("irminsul: chunks were not written to the store")
            call.lost = True
        with self._changed:
            self._queued_bytes -= call.held_bytes
            self._sending.discard(call)
            if call.lost:
                self._finish(call, None)

    # The watching thread.

    def _watch(self) -> None:
        wait = self._settings.retry_s
        while not self._closed.is_set():
            client = self._start()
            if client is None:
                self._closed.wait(wait)
                wait = min(2 * wait, self._settings.retry_most_s)
                continue
            started = time.monotonic()
            self._receive(client)
            self._lose(client)
            # A client that served for a while earns a quick second start.
            if time.monotonic() - started > self._settings.retry_most_s:
                wait = self._settings.retry_s
            self._closed.wait(wait)
            wait = min(2 * wait, self._settings.retry_most_s)
        self._drain()

    def _start(self) -> ClientProcess | None:
        client = ClientProcess.start(self._settings, self._room.descriptor, self._closed.is_set)
        if client is None:
            return None
        self._counts.add("starts")
        with self._changed:
            self._client = client
            self._changed.notify_all()
        return client

    def _receive(self, client: ClientProcess) -> None:
        """Handle replies until the client is gone, hangs, or says that the store is away."""
        while not self._closed.is_set():
            try:
                message = client.receive(0.05 if self._flying else 0.25)
            except (EOFError, OSError):
                return
            if message is None:
                if self._hung():
                    self._counts.add("hung")
                    return
                continue
            reply = json.loads(message)
            codes: list[int] | None = reply.get("codes")
            self._replied(reply["id"], codes)
            if codes and all(code in _AWAY for code in codes):
                return

    def _replied(self, number: int, codes: list[int] | None) -> None:
        """Let the call take its codes, in another thread when that means to read its pieces."""
        with self._changed:
            call = self._flying.pop(number, None)
            if call is None:
                return
            self._settling.add(call)
        if call.kind == "get":
            self._checkers.submit(self._settle, call, codes)
        else:
            self._settle(call, codes)

    def _settle(self, call: Call, codes: list[int] | None) -> None:
        try:
            call.settle(codes, self._room.pieces(call))
        except Exception:  # a receiver's fault must not cost the room
            logger.exception("irminsul: chunks that came from the store were not taken")
        # The call has read its pieces.
        with self._changed:
            self._settling.discard(call)
            self._room.give(call)
            self._changed.notify_all()

    def _hung(self) -> bool:
        now = time.monotonic()
        with self._changed:
            return any(call.hangs_at < now for call in self._flying.values())

    def _lose(self, client: ClientProcess) -> None:
        """End the client first: then nobody writes to the block any more, and pieces are free."""
        with self._changed:
            self._client = None
        client.kill()
        self._drain()

    def _drain(self) -> None:
        with self._changed:
            for call in list(self._flying.values()):
                if call in self._sending:
                    call.lost = True
                else:
                    self._finish(call, None)
            self._changed.notify_all()

    def _finish(self, call: Call, codes: list[int] | None) -> None:
        self._flying.pop(call.number, None)
        self._room.give(call)
        call.settle(codes, [])
