"""Blocks of trials -> their samples, from several processes that share one device.

Must not know statistics or files. Serving so small a model is bound by the host, prompt by prompt:
the processes add up.
"""

from __future__ import annotations

import argparse
import queue
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import arms
import model as small
import scenarios
import tasks
import torch
import torch.multiprocessing as mp
from measure import Bench, Sample

CONTEXTS = 6
"""Contexts that a block has room for, for each of its trials; a chain's take four times as many."""


@dataclass(frozen=True)
class Block:
    """Trials `first` to `end` of a scenario."""

    scenario: str
    first: int
    end: int


def blocks(scenario: str, samples: int, size: int, first: int = 0) -> list[Block]:
    """Cut the trials from `first` on into blocks; a chain's trials take four times the room."""
    step, end = max(1, size // 4) if scenario == "chain" else size, first + samples
    return [Block(scenario, at, min(at + step, end)) for at in range(first, end, step)]


class Worker:
    """Runs blocks on one model."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.set_num_threads(options.threads)
        device = torch.device(options.device)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        model = small.load(options.weights, dtype).to(device)
        self.maker = scenarios.Maker(
            options.tokens, options.documents, tasks.Filler(), reading=options.reading
        )
        contexts = max(options.batch, 4) * CONTEXTS
        named = options.arms or [arm.name for arm in arms.ARMS]
        self.arms = [arm for arm in (*arms.ARMS, *arms.REPAIRS) if arm.name in named]
        self.bench = Bench(model, contexts * (options.tokens + 320), options.chunk_tokens)

    def run(self, block: Block) -> list[Sample]:
        trials = [self.maker.trial(block.scenario, i) for i in range(block.first, block.end)]
        return list(self.bench.run(trials, self.arms))


def run(
    wanted: Sequence[Block], options: argparse.Namespace, seconds: float
) -> Iterator[tuple[Block, list[Sample]]]:
    """Yield blocks with their samples as they end; none begins after `seconds`."""
    begin = time.monotonic()
    if options.workers <= 1:
        worker = Worker(options)
        for block in wanted:
            if time.monotonic() - begin > seconds:
                return
            yield block, worker.run(block)
        return
    context = mp.get_context("spawn")
    orders, made = context.Queue(), context.Queue()
    pool = [
        context.Process(target=_work, args=(options, orders, made, seconds), daemon=True)
        for _ in range(min(options.workers, len(wanted)))
    ]
    for block in wanted:
        orders.put(block)
    for process in pool:
        process.start()
    try:
        yield from _collect(pool, made)
    finally:
        for process in pool:
            process.terminate()


def _collect(pool: Sequence[Any], made: Any) -> Iterator[tuple[Block, list[Sample]]]:
    """Yield what comes until every process has ended; report those that failed."""
    running = len(pool)
    while running:
        try:
            block, samples = made.get(timeout=5)
        except queue.Empty:
            running = sum(process.is_alive() for process in pool)
            continue
        if block is None:
            running -= 1
        else:
            yield block, samples
    failed = [process.exitcode for process in pool if process.exitcode not in (0, None)]
    if failed:
        print(f"{len(failed)} of {len(pool)} processes failed: {failed}", flush=True)


def _work(options: argparse.Namespace, orders: Any, made: Any, seconds: float) -> None:
    begin = time.monotonic()
    worker = Worker(options)
    while time.monotonic() - begin <= seconds:
        try:
            block = orders.get(timeout=1)
        except queue.Empty:
            break
        made.put((block, worker.run(block)))
    made.put((None, []))
    made.close()
    made.join_thread()
