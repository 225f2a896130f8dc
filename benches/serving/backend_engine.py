"""One SGLang engine in a process of its own: commands come by a pipe, what was measured goes back.

So several engines can start at the same time and share one device, of which one works at a time.
Must not know what the numbers are compared with.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import backend_steps
import numpy as np
from common import Ids, Prompts, vocabulary

SETTLE = 6
"""Steps of a whole batch that are left out before counting begins."""


class Engine:
    """An engine in another process; calls are the methods of `_Served`."""

    def __init__(
        self, name: str, options: dict[str, Any], many: int, log: Path, **environment: str
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = name
        self._ours, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, options, many, str(log), environment), daemon=False
        )
        self._process.start()
        theirs.close()

    def __call__(self, method: str, *arguments: Any) -> Any:
        """Call and wait; what went wrong in the engine's process is raised here."""
        self.ask(method, *arguments)
        return self.wait()

    def ask(self, method: str, *arguments: Any) -> None:
        """Call without waiting; `wait` has the answer."""
        self._ours.send((method, arguments))

    def wait(self) -> Any:
        """Wait for the answer that is due; the first one says that the engine is up."""
        good, value = self._ours.recv()
        if not good:
            raise RuntimeError(f"{self.name}: {value}")
        return value

    def stop(self) -> None:
        """Let the engine end, and its process."""
        with contextlib.suppress(BrokenPipeError):
            self._ours.send(("stop", ()))
        self._process.join(20)
        if self._process.is_alive():
            self._process.terminate()


def _serve(
    pipe: Connection, options: dict[str, Any], many: int, log: str, environment: dict[str, str]
) -> None:
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, sys.stdout.fileno())
    os.dup2(handle, sys.stderr.fileno())
    with tempfile.TemporaryDirectory() as folder:
        backend_steps.install(Path(folder))
        steps = str(Path(folder) / "steps")
        os.environ.update({backend_steps.VARIABLE: steps} | environment)
        _obey(pipe, options, many, Path(steps))


def _obey(pipe: Connection, options: dict[str, Any], many: int, steps: Path) -> None:
    try:
        served = _Served(options, many, steps)
        pipe.send((True, served.up))
    except BaseException as error:
        traceback.print_exc()
        pipe.send((False, f"did not start: {error!r}"))
        return
    while True:
        method, arguments = pipe.recv()
        if method == "stop":
            served.engine.shutdown()
            return
        try:
            pipe.send((True, getattr(served, method)(*arguments)))
        except Exception as error:
            traceback.print_exc()
            pipe.send((False, repr(error)))


def _generate(request: dict[str, Any], rid: str) -> Any:
    """Return SGLang's form of a request of `_Served.answers`."""
    from sglang.srt.managers.io_struct import GenerateReqInput

    sampling = {"temperature": 0, "max_new_tokens": request.get("tokens", 16), "ignore_eos": True}
    if request.get("exact"):
        sampling["custom_params"] = {"irminsul": False}
    return GenerateReqInput(
        input_ids=request["ids"],
        sampling_params=sampling,
        rid=rid,
        return_logprob=True,
        top_logprobs_num=2,
    )


def _totals() -> Iterator[Any]:
    """Yield what has been counted so far, a sample for each set of labels."""
    from prometheus_client import CollectorRegistry, multiprocess

    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)
    for family in registry.collect():
        yield from (sample for sample in family.samples if sample.name.endswith("_total"))


def _summed(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in values:
        found[name] = found.get(name, 0.0) + value
    return found


class _Served:
    """What can be asked of an engine."""

    def __init__(self, options: dict[str, Any], many: int, steps: Path) -> None:
        import sglang

        self._steps = steps
        began = time.perf_counter()
        stored = any(Path(options["model_path"]).glob("*.safetensors"))
        self.engine = sglang.Engine(
            load_format="auto" if stored else "dummy",
            skip_tokenizer_init=True,
            grammar_backend="none",
            random_seed=0,
            **options,
        )
        self._vocabulary = vocabulary(options["model_path"])
        self._context, self._prompts = 0, list[Ids]()
        self._many = many
        self.up = round(time.perf_counter() - began, 1)

    def fill(self, batch: int, context: int) -> None:
        """Put the prompts of a case into the cache if they are not there; their rows are noise."""
        if self._context == context and len(self._prompts) >= batch:
            return
        self.flush()
        made = Prompts(context, self._vocabulary, seed=context)
        self._context, self._prompts = context, [made.fresh(context) for _ in range(batch)]
        fill = self._steps.with_suffix(".fill")
        fill.touch()
        try:
            self._seconds(self._prompts, 1)
        finally:
            fill.unlink()

    def rate(self, batch: int) -> tuple[float, float | None]:
        """Return decode's tokens per second over so many of the prompts that `fill` put in.

        Counted by the scheduler's own steps, while all requests run; and the median milliseconds
        that the device took for one of them.
        """
        begin = self._steps.stat().st_size if self._steps.exists() else 0
        self._seconds(self._prompts[:batch], self._many)
        with self._steps.open() as file:
            file.seek(begin)
            steps = [json.loads(line) for line in file]
        whole = [step for step in steps if step[1] == batch][SETTLE:]
        if len(whole) < SETTLE:
            raise RuntimeError(f"{len(whole)} steps of {batch} requests")
        device = [took for _, _, took in whole if took is not None]
        seconds = whole[-1][0] - whole[0][0]
        return batch * (len(whole) - 1) / seconds, statistics.median(device) if device else None

    def first_token(self, context: int, samples: int) -> dict[str, float]:
        """Return the median seconds to the token of a cold prompt, and of one that is cached."""
        self._context = 0
        made, cold, warm = Prompts(context, self._vocabulary, seed=context), [], []
        for _ in range(samples):
            self.flush()
            ids = made.fresh(context)
            cold.append(self._seconds([ids], 1))
            warm.append(self._seconds([ids], 1))
        return {"cold": statistics.median(cold), "cached": statistics.median(warm)}

    def memory(self) -> dict[str, Any]:
        """Return what the scheduler says of its memory, in GB and tokens."""
        states = self.engine.get_server_info()["internal_states"]
        found = dict(states[0].get("memory_usage", {}))
        return {name: found[name] for name in found if np.isscalar(found[name])}

    def flush(self) -> None:
        """Empty the cache; an engine that has just answered may not be idle yet."""
        for _ in range(200):
            if self.engine.flush_cache().success:
                return
            time.sleep(0.05)
        raise RuntimeError("the engine never became idle")

    def used(self) -> int:
        """Return how many slots are neither free nor only cached."""
        loads = self.engine.loop.run_until_complete(self.engine.tokenizer_manager.get_loads())
        return int(loads[0].num_used_tokens)

    def counters(self) -> dict[str, float]:
        """Return what the schedulers have counted, by name; it must publish metrics."""
        return _summed((sample.name, sample.value) for sample in _totals())

    def fallbacks(self) -> dict[str, float]:
        """Return how often irminsul gave reuse up, by reason; the engine must publish metrics."""
        name = "irminsul:fallback_total"
        found = (s for s in _totals() if s.name == name and s.value)
        return _summed((sample.labels["reason"], sample.value) for sample in found)

    def answers(self, requests: list[dict[str, Any]], together: bool) -> list[dict[str, Any]]:
        """Answer requests one by one or at once.

        Parameters
        ----------
        requests
            Of ``ids``, and optionally ``rid``, ``tokens``, ``exact`` (reuse nothing that moved) and
            ``abort``, seconds after which it is ended.

        Returns
        -------
        list of dict
            Output ``tokens``, the ``logprobs`` of the two likeliest at each step as (logprob, id)
            pairs, how much of the prompt was ``cached``, how the answer ``ended`` and how often the
            request was ``retracted``.
        """
        import asyncio

        async def everything() -> list[Any]:
            if together:
                return list(await asyncio.gather(*(self._answer(r) for r in requests)))
            return [await self._answer(request) for request in requests]

        return list(self.engine.loop.run_until_complete(everything()))

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        import asyncio

        rid = f"{request.get('rid', 'r')}-{time.monotonic_ns()}"
        manager = self.engine.tokenizer_manager
        if "abort" in request:
            asyncio.get_running_loop().call_later(request["abort"], manager.abort_request, rid)
        answer: dict[str, Any] = {"meta_info": {}, "output_ids": []}
        # One that is ended before it was scheduled has no answer.
        with contextlib.suppress(ValueError) if "abort" in request else contextlib.nullcontext():
            async for newest in manager.generate_request(_generate(request, rid), None):
                answer = newest
        meta = answer["meta_info"]
        tops = meta.get("output_top_logprobs") or []
        return {
            "tokens": list(answer["output_ids"]),
            "logprobs": [[(float(p), int(i)) for p, i, *_ in step] for step in tops],
            "cached": int(meta.get("cached_tokens", 0)),
            "ended": (meta.get("finish_reason") or {}).get("type", "abort"),
            "retracted": int(meta.get("num_retractions", 0)),
        }

    def _seconds(self, prompts: list[Ids], tokens: int) -> float:
        """Return how long all answers take, in one batch and without streaming."""
        began = time.perf_counter()
        self.engine.generate(
            input_ids=[ids.tolist() for ids in prompts],
            sampling_params={"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
        )
        return time.perf_counter() - began
