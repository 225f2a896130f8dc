"""One engine that moves reused rows or lets requests borrow, in a process of its own.

Must not know what is compared. Commands come by a pipe, so both engines can start at the same time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import share_profile
from common import Ids, Reply, Server

MODES = ("copy", "share")
ANSWER = 64  # tokens


@dataclass
class Held:
    """What all sessions together did: their answers, and the most slots they held."""

    replies: list[Reply]
    slots: int
    seconds: float


class Engine:
    """One engine in a process of its own, so that both start at the same time."""

    def __init__(self, arguments: argparse.Namespace, mode: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=answer, args=(theirs, arguments, mode))
        self._process.start()
        theirs.close()

    def __call__(self, *call: Any) -> Any:
        """Call `flush`, `serve`, `hold` or `profile` there and wait for what it returns."""
        self._pipe.send(call)
        return self.wait()

    def wait(self) -> Any:
        """Wait for the answer that is due; the first one says that the engine is up."""
        result = self._pipe.recv()
        if isinstance(result, Exception):
            raise result
        return result

    def stop(self) -> None:
        """Let the engine end, and its process."""
        with contextlib.suppress(BrokenPipeError):
            self._pipe.send(("stop",))
        self._process.join(20)
        if self._process.is_alive():
            self._process.terminate()


def answer(pipe: Connection, arguments: argparse.Namespace, mode: str) -> None:
    """Start an engine in this process and do what comes by `pipe`."""
    try:
        server = start(arguments, mode)
    except BaseException as error:
        traceback.print_exc()
        pipe.send(RuntimeError(f"{mode} did not start: {error!r}"))
        return
    pipe.send(f"# {mode} is up")
    calls: dict[str, Callable[..., Any]] = {
        "flush": server.flush,
        "serve": server.serve,
        "hold": partial(hold, server),
        "profile": partial(share_profile.profile, server, device=arguments.device),
    }
    while (call := pipe.recv())[0] != "stop":
        try:
            result = calls[call[0]](*call[1:])
        except Exception as error:
            traceback.print_exc()
            result = error
        pipe.send(result)
    server.stop()


def start(arguments: argparse.Namespace, mode: str) -> Server:
    """Start one engine; schedulers inherit the environment of this moment."""
    os.environ["IRMINSUL_REUSE"] = mode
    options: dict[str, Any] = {"attention_backend": "irminsul", "page_size": 64}
    options["port"] = 31_000 + 300 * MODES.index(mode)
    if arguments.device == "cpu":
        from irminsul.demo import cpu_host

        os.environ.update(cpu_host.environment(page_size=64))
        made = cpu_host.engine_arguments(arguments.model, dtype="float32")
        options = {**made, **options, "load_format": "auto", "max_total_tokens": 64 * 511}
    return Server(arguments.model, "irminsul", **{**options, **json.loads(arguments.engine)})


def hold(server: Server, prompts: list[Ids]) -> Held:
    """Answer all prompts together and watch the pool meanwhile."""
    seen = [0]

    async def look() -> None:
        while True:
            await asyncio.sleep(0.02)
            loads = await server.engine.tokenizer_manager.get_loads()
            # Neither free nor only cached.
            seen.append(int(loads[0].num_used_tokens))

    async def everyone() -> list[Reply]:
        watch = asyncio.ensure_future(look())
        try:
            return list(await asyncio.gather(*(server.answer(p, "", ANSWER) for p in prompts)))
        finally:
            watch.cancel()

    began = time.perf_counter()
    replies = server.run(everyone())
    return Held(replies, max(seen), time.perf_counter() - began)
