"""Requests on a socket -> calls of Mooncake's client, over memory shared with the tier's process.

Must not know chunks, keys' meaning or engines: names, offsets and sizes.

Why a process: `setup` and `close` of Mooncake's client hold Python's global lock for seconds when
the master is away, a call cannot be cancelled, and a failed client can crash its process. Here all
of that is somebody else's. The process ends itself when the socket closes.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

# Mooncake waits 30 s for its master and 60 s for a peer by default. An operator's own values win.
_IMPATIENT = {
    "MC_RPC_TIMEOUT_MS": "1000",
    "MC_RPC_CONNECT_TIMEOUT_MS": "500",
    "MC_TCP_PROGRESS_TIMEOUT_SEC": "1",
    "MC_TCP_STATUS_TIMEOUT_SEC": "1",
    "MC_STORE_CLIENT_METRIC": "0",
}


class Client:
    """Mooncake's client over one shared block.

    Parameters
    ----------
    settings : dict
        Fields of `MooncakeSettings`.
    memory : mmap
        The block; registered with Mooncake once.
    """

    def __init__(self, settings: dict[str, Any], memory: mmap.mmap) -> None:
        from mooncake.store import MooncakeDistributedStore

        self._block = np.frombuffer(memory, dtype=np.uint8)
        self._base = self._block.ctypes.data
        self._store = MooncakeDistributedStore()
        code = self._store.setup(
            settings["local_hostname"],
            settings["metadata"],
            0,
            16 << 20,
            settings["protocol"],
            settings["device"],
            settings["master"],
        )
        if code:
            raise ConnectionError(f"setup returned {code}")
        if code := self._store.register_buffer(self._base, len(self._block)):
            raise ConnectionError(f"register_buffer returned {code}")

    def run(self, request: dict[str, Any]) -> list[int]:
        """Return Mooncake's own code or size for every key of `request`."""
        keys: list[str] = request["keys"]
        pointers = [self._base + offset for offset in request.get("offsets", ())]
        sizes: list[int] = request.get("sizes", [])
        match request["kind"]:
            case "exists":
                codes = self._store.batch_is_exist(keys)
            case "get":
                codes = self._store.batch_get_into(keys, pointers, sizes)
            case "put":
                codes = self._store.batch_put_from(keys, pointers, sizes)
            case "remove":
                codes = self._store.batch_remove(keys, True)
            case kind:
                raise ValueError(f"unknown kind {kind!r}")
        return list(codes)


def serve(connection: Connection, client: Client, workers: int) -> None:
    """Answer requests until the other side closes.

    Questions that move no rows have a thread of their own: behind a burst of transfers their
    answers would come when nobody waits any more.
    """
    transfers, asks = ThreadPoolExecutor(workers), ThreadPoolExecutor(1)
    writing = threading.Lock()

    def answer(request: dict[str, Any]) -> None:
        try:
            reply = {"id": request["id"], "codes": client.run(request)}
        except Exception as error:  # the caller counts it; this process goes on
            reply = {"id": request["id"], "error": repr(error)}
        try:
            with writing:
                connection.send_bytes(json.dumps(reply).encode())
        except OSError:
            os._exit(0)

    while True:
        request = json.loads(connection.recv_bytes())
        pool = transfers if request.get("sizes") else asks
        pool.submit(answer, request)


def main() -> None:
    """Entry point: the arguments are two file descriptors and the settings as JSON."""
    socket_fd, memory_fd, encoded = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    settings = json.loads(encoded)
    for name, value in _IMPATIENT.items():
        os.environ.setdefault(name, value)
    connection = Connection(socket_fd)
    try:
        client = Client(settings, mmap.mmap(memory_fd, settings["arena_bytes"]))
        connection.send_bytes(json.dumps({"ready": True}).encode())
        serve(connection, client, settings["workers"])
    except (EOFError, ConnectionError, OSError) as error:
        print(f"irminsul: mooncake client ends: {error!r}", file=sys.stderr)
    finally:
        # Not sys.exit: Mooncake's own threads may be stuck, and its tear-down can crash.
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    main()
