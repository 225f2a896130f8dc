"""Settings and shared memory -> a running client process with a socket to it.

Must not know calls: bytes go in, bytes come out.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import IO

from irminsul.tiers.mooncake.settings import MooncakeSettings

__all__ = ["ClientProcess", "answers"]

logger = logging.getLogger(__name__)

_START_S = 15.0
_SOCKET_BYTES = 1 << 20


class ClientProcess:
    """One life of the client.

    Parameters
    ----------
    process : Popen
        The process.
    connection : Connection
        Its socket.
    """

    def __init__(self, process: subprocess.Popen[bytes], connection: Connection) -> None:
        self._process = process
        self._connection = connection
        self._writing = threading.Lock()

    @classmethod
    def start(
        cls, settings: MooncakeSettings, memory_fd: int, stopped: Callable[[], bool]
    ) -> ClientProcess | None:
        """Start a client and wait until it is connected; None when the store is away.

        Parameters
        ----------
        settings : MooncakeSettings
            What to connect to.
        memory_fd : int
            The shared block.
        stopped : callable
            True ends the wait.
        """
        # Mooncake's own attempt takes seconds of one core to import and fail: look first.
        if not answers(settings.address, 0.5):
            return None
        try:
            client = cls._spawn(settings, memory_fd)
        except OSError as error:  # no memory or no descriptors, for now
            logger.warning("irminsul: the store's client does not start: %s", error)
            return None
        until = time.monotonic() + _START_S
        with contextlib.suppress(EOFError, OSError):
            while time.monotonic() < until and not stopped():
                if client.receive(0.1) is not None:
                    return client
        client.kill()
        return None

    @classmethod
    def _spawn(cls, settings: MooncakeSettings, memory_fd: int) -> ClientProcess:
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        with contextlib.ExitStack() as stack:
            stack.enter_context(ours)
            stack.enter_context(theirs)
            log: int | IO[bytes] = subprocess.DEVNULL
            if settings.log_path:
                log = stack.enter_context(open(settings.log_path, "ab"))
            fds = (theirs.fileno(), memory_fd)
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "irminsul.tiers.mooncake.worker"),
                    *map(str, fds),
                    json.dumps(settings.as_dict()),
                ],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A Ctrl-C in the engine's terminal is the engine's to handle. A group and not a
                # session of its own: Linux shares out busy cores by session, and answers to a
                # process of another one come half as fast.
                process_group=0,
            )
            return cls(process, Connection(ours.detach()))

    def send(self, message: bytes) -> None:
        """Write one message; raises OSError when the process is gone. Thread-safe."""
        with self._writing:
            self._connection.send_bytes(message)

    def receive(self, timeout: float) -> bytes | None:
        """Return the next message, or None after `timeout` seconds.

        Raises EOFError or OSError when the process is gone.
        """
        return self._connection.recv_bytes() if self._connection.poll(timeout) else None

    def kill(self) -> None:
        """End the process and wait until it is gone; calling it again does nothing.

        The socket is left to the last reference: another thread may be about to write to it, and
        a closed descriptor's number may be someone else's by then.
        """
        self._process.kill()
        self._process.wait()


def answers(address: tuple[str, int], timeout: float) -> bool:
    """Return whether something accepts connections at `address`."""
    try:
        with socket.create_connection(address, timeout):
            return True
    except OSError:
        return False
