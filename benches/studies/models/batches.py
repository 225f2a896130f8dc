"""Curriculum stages and a seed -> batches of token ids with loss weights, made by worker processes.

Must not know models. Batch number n depends on the seed, n and the stage alone.
"""

from __future__ import annotations

import argparse
import queue
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace

import numpy as np
import tasks
import torch
import torch.multiprocessing as mp
from torch import Tensor

OTHER_WEIGHT = 0.02
"""Loss weight of a token that is no answer: enough to learn the filler, too little to mind it."""


@dataclass(frozen=True)
class Stage:
    """One step of the curriculum.

    Parameters
    ----------
    lengths
        Row lengths that batches take, the longest most often.
    mix
        Weight of each kind of question.
    bars
        Accuracy by kind at which the next stage may begin, after `min_steps` steps.
    latest
        Part of the whole time after which it begins anyway.
    """

    lengths: tuple[int, ...]
    batch_tokens: int
    mix: dict[str, float]
    bars: dict[str, float]
    latest: float
    names: int = 512
    min_steps: int = 100


@dataclass(frozen=True)
class Batch:
    """Rows of one length; `spans` are (row, first, end, kind) of every answer."""

    tokens: Tensor
    weights: Tensor
    spans: list[tuple[int, int, int, str]] = field(default_factory=list)


_DISTRACTORS = (0.0, 0.05, 0.05, 0.15, 0.3)
# Facts, prompt and answer together.
_TOKENS_PER_QUESTION = {"single": 8, "hop2": 12, "hop3": 16, "vars": 12, "multi": 21, "tool": 22}
_ONE = {"single": 1.0}
_EVEN = {"single": 1.0, "hop2": 1.5, "hop3": 1.5, "vars": 1.0, "multi": 0.7, "tool": 0.7}
_FIRST = {"single": 3.0, "hop2": 0.6, "hop3": 0.3, "vars": 0.5, "multi": 0.3, "tool": 0.5}
_SECOND = {"single": 1.5, "hop2": 1.5, "hop3": 1.0, "vars": 1.0, "multi": 0.5, "tool": 0.7}


def curriculum(max_length: int, batch_tokens: int) -> list[Stage]:
    """Short rows with many lookups first: that is where induction appears; then longer ones."""
    lookup = {"single": 0.95}
    hops = {"single": 0.97, "hop2": 0.9}
    stages = [
        Stage((64,), batch_tokens // 4, _ONE, lookup, 0.08, names=128),
        Stage((64, 128), batch_tokens // 2, _FIRST, lookup, 0.15),
        Stage((128, 256), batch_tokens, _SECOND, hops, 0.3),
        Stage((256, 512), batch_tokens, _EVEN, hops, 0.4),
        Stage((256, 512, 1024), batch_tokens, _EVEN, hops, 0.5),
        Stage((512, 1024, 2048), batch_tokens, _EVEN, hops, 0.6),
        Stage((512, 1024, 2048, 4608), batch_tokens, _EVEN, {}, 1.0),
    ]
    fit = [stage for stage in stages if max(stage.lengths) <= max_length]
    return [*fit[:-1], replace(fit[-1], bars={}, latest=1.0)]


def shape_for(rng: np.random.Generator, length: int, stage: Stage) -> tasks.Shape:
    """Draw the size of a world in a row of `length`: dense with facts when short, sparse later."""
    total = sum(stage.mix.values())
    mean = sum(_TOKENS_PER_QUESTION[kind] * weight for kind, weight in stage.mix.items()) / total
    density = float(rng.uniform(0.3, 0.9))
    most = min(64, stage.names // 6)
    questions = int(max(1, min(most, density * length / mean)))
    documents = int(rng.integers(1, max(1, min(40, length // 64)) + 1))
    distractors = float(rng.choice(_DISTRACTORS))
    return tasks.Shape(length, documents, questions, distractors, stage.names)


def make_batch(stage: Stage, seed: int, index: int, filler: tasks.Filler) -> Batch:
    """Make batch `index` of a stage."""
    rng = np.random.default_rng([seed, index, max(stage.lengths)])
    odds = np.arange(1, len(stage.lengths) + 1, dtype=float) ** 2
    length = int(rng.choice(stage.lengths, p=odds / odds.sum()))
    rows = max(1, stage.batch_tokens // length)
    tokens = torch.zeros(rows, length, dtype=torch.int64)
    weights = torch.zeros(rows, length)
    spans = []
    for row in range(rows):
        world = _world(rng, filler, length, stage)
        ids = world.tokens()[:length]
        tokens[row, : len(ids)] = torch.from_numpy(ids)
        weights[row, : len(ids)] = OTHER_WEIGHT
        at = 1 + sum(map(len, world.documents))
        for question in world.questions:
            first = at + len(question.prompt)
            at = first + len(question.answer)
            if at > length:
                break
            weights[row, first:at] = 1.0
            spans.append((row, first, at, question.kind))
    return Batch(tokens, weights, spans)


def _world(
    rng: np.random.Generator, filler: tasks.Filler, length: int, stage: Stage
) -> tasks.World:
    """Draw until the facts fit: a short row rarely holds many long ones."""
    while True:
        try:
            return tasks.make_world(rng, filler, shape_for(rng, length, stage), stage.mix)
        except ValueError:
            continue


def score(right: Tensor, batch: Batch) -> dict[str, float]:
    """Part of the answers that are right in every token, by kind; `right` is [rows, length - 1]."""
    hits: dict[str, list[bool]] = {}
    for row, first, end, kind in batch.spans:
        hits.setdefault(kind, []).append(bool(right[row, first - 1 : end - 1].all()))
    return {kind: sum(values) / len(values) for kind, values in hits.items()}


def stream(
    seed: int,
    first: int,
    stage_index: Callable[[], int],
    stages: list[Stage],
    options: argparse.Namespace,
) -> Generator[Batch]:
    """Yield batches; with workers they are made ahead, for the stage that was current then."""
    if options.workers == 0:
        filler = tasks.Filler()
        index = first
        while True:
            yield make_batch(stages[stage_index()], seed, index, filler)
            index += 1
    yield from _ahead(seed, first, stage_index, stages, options.workers)


def _ahead(
    seed: int, first: int, stage_index: Callable[[], int], stages: list[Stage], workers: int
) -> Generator[Batch]:
    context = mp.get_context("spawn")
    orders: mp.Queue[tuple[int, int] | None] = context.Queue()
    made: mp.Queue[tuple[int, Batch]] = context.Queue()
    pool = [
        context.Process(target=_work, args=(seed, stages, orders, made), daemon=True)
        for _ in range(workers)
    ]
    for process in pool:
        process.start()
    waiting: dict[int, Batch] = {}
    ordered = wanted = first
    try:
        while True:
            while ordered < wanted + 3 * workers:
                orders.put((ordered, stage_index()))
                ordered += 1
            while wanted not in waiting:
                index, batch = made.get(timeout=120)
                waiting[index] = batch
            yield waiting.pop(wanted)
            wanted += 1
    finally:
        for process in pool:
            process.terminate()


def _work(
    seed: int,
    stages: list[Stage],
    orders: mp.Queue[tuple[int, int]],
    made: mp.Queue[tuple[int, Batch]],
) -> None:
    torch.set_num_threads(1)
    filler = tasks.Filler()
    while True:
        try:
            index, stage = orders.get(timeout=600)
        except queue.Empty:
            return
        made.put((index, make_batch(stages[stage], seed, index, filler)))
