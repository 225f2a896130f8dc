"""SGLang engines on random weights -> timed requests, cold prompts and others in turn.

Must not know what a step measures.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
GPU_HEADS = {"heads": 16, "nope_head_dim": 128, "value_head_dim": 128}  # of what GPUs have kernels
SINK_TOKENS = 32  # rows computed at these positions stay where they are
_BESIDE = (0, 1, 13, *range(233, 240))  # what SGLang derives from an engine's port, and NCCL's


@dataclass
class Reply:
    """One answered request: seconds to its first and last token, and what was cached."""

    first: float
    last: float
    cached: int
    prompt: int
    tokens: list[int]
    finish: str = ""


@dataclass
class Load:
    """Answers of a closed loop and how long all of it took.

    ``over`` is set when a client has nothing left to send.
    """

    replies: list[Reply] = field(default_factory=list)
    seconds: float = 0.0
    over: bool = False


class Server:
    """One engine in this process.

    Parameters
    ----------
    model
        Folder with a ``config.json``.
    backend
        ``irminsul``, or ``stock`` for SGLang's own radix cache.
    options
        Engine arguments that replace the defaults.
    """

    def __init__(self, model: str, backend: str, **options: Any) -> None:
        import sglang

        port = free_port()
        arguments: dict[str, Any] = {
            "model_path": model,
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "grammar_backend": "none",
            "random_seed": 0,
            "port": port,
            "nccl_port": port + 1,
        }
        if backend == "irminsul":
            arguments["radix_cache_backend"] = "irminsul"
        self.backend, self.warm = backend, False
        self.engine = sglang.Engine(**{**arguments, **options})

    def serve(self, ids: Ids, rid: str = "", tokens: int = 1, **fields: Any) -> Reply:
        """Answer one request."""
        return self.run(self.answer(ids, rid, tokens, **fields))

    def run(self, work: Awaitable[Any]) -> Any:
        """Wait for `work` on the engine's own event loop."""
        return self.engine.loop.run_until_complete(work)

    def flush(self) -> None:
        """Empty the cache; an engine that has just answered may not be idle yet."""
        for _ in range(200):
            if self.engine.flush_cache().success:
                return
            time.sleep(0.05)
        raise RuntimeError("the engine never became idle")

    def closed_loop(
        self, sessions: Sequence[Sequence[Ids]], clients: int, tokens: int, busy: bool = False
    ) -> Load:
        """Let `clients` work off `sessions`, each call sent when the last one is answered.

        Parameters
        ----------
        busy
            Stop counting when the first client has nothing left, so that all that is counted was
            served while every client was there.
        """
        # Lists beforehand: all clients share one thread, and making them would keep it from others.
        load, waiting = Load(), [[ids.tolist() for ids in calls] for calls in reversed(sessions)]

        async def client() -> None:
            while waiting and not load.over:
                for ids in waiting.pop():
                    reply = await self.answer(ids, "", tokens)
                    if load.over:
                        return
                    load.replies.append(reply)
            if not load.over:
                load.over, load.seconds = busy, time.perf_counter() - began

        async def everyone() -> None:
            await asyncio.gather(*(client() for _ in range(clients)))

        began = time.perf_counter()
        self.run(everyone())
        return load

    def stop(self) -> None:
        self.engine.shutdown()

    async def answer(self, ids: Ids | list[int], rid: str, tokens: int, **fields: Any) -> Reply:
        from sglang.srt.managers.io_struct import GenerateReqInput

        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        sampling |= fields.pop("sampling", {})
        request = GenerateReqInput(
            input_ids=ids if isinstance(ids, list) else ids.tolist(),
            sampling_params=sampling,
            stream=tokens > 1,
            rid=f"{rid}-{time.monotonic_ns()}" if rid else None,
            **fields,
        )
        began, first = time.perf_counter(), 0.0
        meta: dict[str, Any] = {}
        ids_out: list[int] = []
        async for answer in self.engine.tokenizer_manager.generate_request(request, None):
            first = first or time.perf_counter() - began
            meta, part = answer["meta_info"], list(answer["output_ids"])
            # Some versions stream all ids so far, some only the new ones.
            whole = len(part) == meta.get("completion_tokens", len(part))
            ids_out = part if whole else ids_out + part
        return Reply(
            first,
            time.perf_counter() - began,
            int(meta.get("cached_tokens", 0)),
            int(meta.get("prompt_tokens", 0)),
            ids_out,
            (meta.get("finish_reason") or {}).get("type", ""),
        )


class Prompts:
    """Draws a cold text and prompts that reuse a part of it."""

    def __init__(self, length: int, vocabulary: int, seed: int) -> None:
        self.length = length
        self._vocabulary = vocabulary
        self._random = np.random.default_rng(seed)

    def fresh(self, count: int) -> Ids:
        low = min(1000, self._vocabulary // 4)
        return self._random.integers(low, self._vocabulary - low, count, dtype=np.int64)

    def prefix(self, cold: Ids, reused: int) -> Ids:
        """Return a prompt that equals `cold` in its first `reused` tokens."""
        return np.concatenate([cold[:reused], self.fresh(self.length - reused)])

    def holes(self, cold: Ids, count: int, reused: int) -> Ids:
        """Return a prompt with `reused` moved tokens of `cold` between `count` holes."""
        body = cold[SINK_TOKENS : SINK_TOKENS + reused]
        spans = np.array_split(body, count - 1)
        fresh = np.array_split(self.fresh(self.length - len(body)), count)
        parts = [part for pair in zip(fresh[:-1], spans, strict=True) for part in pair]
        return np.concatenate([*parts, fresh[-1]])


class Clock:
    """Seconds that a step may take samples for, from the first one on."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = 0.0

    def goes_on(self, taken: int, least: int = 3) -> bool:
        """Return whether another sample may be taken; `least` are taken in any case."""
        now = time.perf_counter()
        self._end = self._end or now + self._seconds
        return taken < least or now < self._end


@dataclass
class Bench:
    """What a step works with."""

    server: Callable[[str], Server]
    vocabulary: int
    length: int
    samples: int
    clock: Clock
    sessions: list[list[Ids]]

    def prompts(self, length: int = 0) -> Prompts:
        return Prompts(length or self.length, self.vocabulary, seed=length or self.length)


Case = Callable[[Ids], tuple[Ids, dict[str, Any]]]


def interleaved(
    server: Server,
    prompts: Prompts,
    cases: dict[str, Case],
    samples: int,
    clock: Clock,
    apart: bool = False,
) -> dict[str, list[Reply]]:
    """Take cold and every case in turn, in another order each time.

    Parameters
    ----------
    cases
        Name -> what makes the case's prompt, and what else `Server.serve` takes, of the cold text.
    apart
        No case finds what another one left: each has the cold text computed again before it.
    """
    taken: dict[str, list[Reply]] = {"cold": [], **{case: [] for case in cases}}
    names = list(cases)
    while len(taken["cold"]) < samples and clock.goes_on(len(taken["cold"])):
        server.flush()
        cold = prompts.fresh(prompts.length)
        taken["cold"].append(server.serve(cold))
        shift = len(taken["cold"]) % max(1, len(names))
        for number, name in enumerate(names[shift:] + names[:shift]):
            if apart and number:
                server.flush()
                server.serve(cold)
            ids, fields = cases[name](cold)
            taken[name].append(server.serve(ids, **fields))
    return taken


def free_port() -> int:
    """Return a port that nobody listens on, nor on those that an engine takes beside it.

    No connection is given one so low, and another process begins elsewhere: SGLang's own choice is
    the same for all engines, or may be taken before its ranks meet there, half a minute on.
    """
    for port in range(4_000 + os.getpid() * 7 % 11_000, 15_700):
        if not any(_listens(port + beside) for beside in _BESIDE):
            return port
    raise RuntimeError("no port below 15,700 is free")


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        return not tried.connect_ex(("127.0.0.1", port))


def vocabulary(model: str) -> int:
    return int(json.loads((Path(model) / "config.json").read_text())["vocab_size"])


def energy_counter() -> Callable[[], float]:
    """Return what reads the joules that this GPU has spent since its driver was loaded."""
    import pynvml

    pynvml.nvmlInit()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    device = pynvml.nvmlDeviceGetHandleByIndex(int(visible or 0))
    return lambda: float(pynvml.nvmlDeviceGetTotalEnergyConsumption(device)) / 1e3


def sessions(path: Path | str) -> list[list[Ids]]:
    """Read calls that `pack.py` wrote: token ids of every call, grouped by session."""
    found: dict[str, list[Ids]] = {}
    with np.load(path) as packed:
        for name in sorted(packed.files):
            found.setdefault(name.split("_")[0], []).append(packed[name].astype(np.int64))
    return list(found.values())
