"""Calls -> CUDA graphs of them -> microseconds per call.

Shared by the benches of all kernels; knows nothing of what is called.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Sequence

import torch

Call = Callable[[], object]

SETTLE = 0.5
"""Seconds of load before samples are taken; see `keep_busy`."""


def capture(calls: Sequence[Call]) -> torch.cuda.CUDAGraph:
    """Run every call once, then record all of them, one after the other, in one graph."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def keep_busy(runs: Collection[Call], seconds: float) -> None:
    """Run all of `runs`, over and over: it takes power a quarter of a second to set the clock.

    Until then the clock is up to a seventh lower.
    """
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        for run in runs:
            run()
        torch.cuda.synchronize()


def timed(run: Call, calls: int, *, rounds: int, warmup: int) -> list[float]:
    """Microseconds per call of `run`, which makes `calls` of them, once for each round."""
    return in_turn({"": run}, calls, rounds=rounds, warmup=warmup)[""]


def in_turn(
    runs: dict[str, Call], calls: int, *, rounds: int, warmup: int = 2, settle: float = 0.0
) -> dict[str, list[float]]:
    """Time several ways side by side: each once a round, so that the GPU's state meets all alike.

    Every round has an order of its own: behind one that draws little power the clock is higher.
    `settle` seconds of the same load come first, where power sets the clock. Throughout the rounds
    the host is ahead of the GPU: it waits for the last one only.
    """
    order = random.Random(0)
    keep_busy(runs.values(), settle)
    for _ in range(warmup):
        for run in runs.values():
            run()
    marks: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in order.sample(list(runs.items()), len(runs)):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            marks[name].append((start, end))
    torch.cuda.synchronize()
    return {
        name: [start.elapsed_time(end) * 1000 / calls for start, end in pairs]
        for name, pairs in marks.items()
    }
