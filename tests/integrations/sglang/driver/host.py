"""A JSON configuration -> a running SGLang engine, and requests sent to it."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import torch
from irminsul.demo import cpu_host


class Host:
    """One engine and everything it has dumped."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.folder = Path(config["dump"])
        page = config["page_size"]
        on_gpu = config.get("device", "cpu") == "cuda"
        ranks = config.get("arguments", {}).get("tp_size", 1)
        os.environ.update({} if on_gpu else cpu_host.environment(page, ranks))
        os.environ.update(config.get("environment", {}))
        os.environ["IRMINSUL_TEST_DUMP_ROWS"] = str(self.folder)
        os.environ["IRMINSUL_TEST_NO_TREE_MATCH"] = "holes"
        os.environ["IRMINSUL_TEST_HOLES"] = "holes"
        os.environ["IRMINSUL_TEST_PLANNER_RAISES"] = "boom"
        import sglang

        self.engine = sglang.Engine(
            **(_gpu_arguments if on_gpu else cpu_host.engine_arguments)(
                config["model"],
                radix_cache_backend="irminsul",
                page_size=page,
                chunked_prefill_size=config["chunk"],
                disable_overlap_schedule=not config["overlap"],
                context_length=4096,
                max_running_requests=16,
                max_total_tokens=config["pool"],
                random_seed=0,
                **config.get("arguments", {}),
            )
        )

    def request(self, ids: list[int] | list[list[int]], rid: Any, **options: Any) -> Any:
        from sglang.srt.managers.io_struct import GenerateReqInput

        sampling = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}
        for name in ("max_new_tokens", "custom_params"):
            if name in options:
                sampling[name] = options.pop(name)
        return GenerateReqInput(input_ids=ids, rid=rid, sampling_params=sampling, **options)

    def run(self, ids: list[int] | list[list[int]], rid: Any, **options: Any) -> Any:
        return self.run_all([self.request(ids, rid, **options)])[0]

    def exact(self, ids: list[int], rid: str, **options: Any) -> Any:
        return self.run(ids, rid, custom_params={"irminsul": False}, **options)

    def run_all(
        self, requests: list[Any], abort_after: dict[str, float] | None = None
    ) -> list[Any]:
        """Send `requests` together; abort those named after so many seconds."""
        return self.engine.loop.run_until_complete(self._gather(requests, abort_after or {}))

    async def _gather(self, requests: list[Any], abort_after: dict[str, float]) -> list[Any]:
        manager = self.engine.tokenizer_manager

        async def one(request: Any) -> Any:
            async for answer in manager.generate_request(request, None):
                result = answer
            return result

        async def abort(rid: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            manager.abort_request(rid)

        aborts = [asyncio.ensure_future(abort(*item)) for item in abort_after.items()]
        answers = await asyncio.gather(*map(one, requests), return_exceptions=True)
        await asyncio.gather(*aborts)
        return list(answers)

    def flush(self) -> None:
        # An answer may arrive before the scheduler is idle, and a busy one does not flush.
        for _ in range(100):
            if self.engine.flush_cache().success:
                return
            time.sleep(0.1)
        raise AssertionError("the engine never became idle")

    def idle_check(self) -> None:
        """Give the scheduler's own leak check time to run; it kills the scheduler on a leak."""
        time.sleep(2.5)
        self.run(list(range(2, 12)), f"alive-{time.monotonic_ns()}", max_new_tokens=1)

    def dumps(self, kind: str, rank: int = 0) -> list[dict[str, Any]]:
        return [torch.load(path) for path in sorted(self.folder.glob(f"*-{rank}-{kind}.pt"))]

    def rows(self, rid: str, length: int) -> dict[str, Any]:
        """Return the first dump of `rid` that holds its whole prompt."""
        return next(d for d in self.dumps("rows") if d["rid"] == rid and len(d["tokens"]) >= length)

    def plans(self, rid: str) -> list[dict[str, Any]]:
        found = []
        for plan in self.dumps("plan"):
            for request in plan["requests"]:
                if request["rid"] == rid:
                    found.append({**request, "plan": plan})
        return found

    def counts(self) -> dict[str, Any]:
        return self.dumps("rows")[-1]["counts"]


def _gpu_arguments(model: str, **overrides: Any) -> dict[str, Any]:
    """Return what serves `model` on a GPU; the attention backend is the configuration's choice."""
    defaults = {
        "model_path": model,
        "dtype": "bfloat16",
        "grammar_backend": "none",
        "skip_tokenizer_init": True,
        "log_level": "warning",
        "mem_fraction_static": 0.85,  # others may fill the GPU too; the pool has its size
        "cuda_graph_max_bs_decode": 16,
    }
    return {**defaults, **overrides}


def outcome(answers: list[Any]) -> dict[str, Any]:
    """Return what tests of storms compare of answers, some of which may be exceptions."""
    results = [answer(given) for given in answers if isinstance(given, dict)]
    aborted = sum(result["finish"] == "abort" for result in results)
    return {
        "answers": len(results),
        "aborted": aborted + len(answers) - len(results),
        "retractions": sum(result["retractions"] for result in results),
        "cached": sum(result["cached"] for result in results),
        "prompt": sum(result["prompt"] for result in results),
        "too_many": [r for r in results if r["cached"] > max(0, r["prompt"] - 1)],
    }


def answer(result: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of an engine's answer that tests compare; an early abort has few."""
    meta = result["meta_info"]
    return {
        "tokens": result["output_ids"],
        "prompt": meta.get("prompt_tokens", 0),
        "cached": meta.get("cached_tokens", 0),
        "details": meta.get("cached_tokens_details"),
        "retractions": meta.get("num_retractions", 0),
        "finish": meta["finish_reason"]["type"] if meta.get("finish_reason") else None,
    }
