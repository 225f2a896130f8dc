"""Token corpora -> what a prefix cache, irminsul and any method could reuse of them.

Must not know files, figures or command lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
from irminsul import Reuse, ReusePlan
from irminsul.traces.bound import seen_before
from irminsul.traces.radix import RadixCache
from irminsul.traces.replay import IrminsulCache, Outcome

Tokens = npt.NDArray[np.uint32]

SINK_TOKENS = 32


@dataclass(frozen=True)
class Recovery:
    """Percent of all prompt tokens; `bound` is what any 64-gram match could reach."""

    prompts: int
    tokens: int
    prefix: float
    irminsul: float
    bound: float
    spans_per_prompt: float
    depth: int


@dataclass(frozen=True)
class Finite:
    """Percent of all prompt tokens at one capacity, in tokens."""

    capacity: int
    prefix: float
    irminsul: float


@dataclass(frozen=True)
class Steady:
    """Reused tokens (beyond the prefix) and stored tokens after each batch."""

    capacity: int
    reused_percent: list[float]
    prefix_percent: list[float]
    stored: list[int]


class MovedRuns(IrminsulCache):
    """A cache that keeps how long the runs are that its plans move by one distance, in tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths: list[int] = []

    def _touch_donors(self, plan: ReusePlan) -> None:
        # Segments tile the prompt, so neighbours in the plan are neighbours in the text.
        by_delta = groupby(plan.segments, lambda s: s.delta if isinstance(s, Reuse) else 0)
        self.lengths += [sum(s.length for s in run) for delta, run in by_delta if delta]
        super()._touch_donors(plan)


def moved_runs(prompts: Sequence[Tokens]) -> list[int]:
    """Tokens of each run, the shortest first."""
    cache = MovedRuns()
    replay(prompts, cache)
    return sorted(cache.lengths)


def _percent(part: int, whole: int) -> float:
    return round(100.0 * part / whole, 2)


def replay(prompts: Sequence[Tokens], cache: IrminsulCache) -> list[Outcome]:
    return [cache.serve(prompt) for prompt in prompts]


def recovery(prompts: Sequence[Tokens]) -> Recovery:
    """Everything is kept. The first tokens of a prompt count only as part of an exact prefix."""
    outcomes = replay(prompts, IrminsulCache())
    seen = seen_before(prompts)
    total = sum(outcome.prompt for outcome in outcomes)
    prefix = sum(outcome.prefix for outcome in outcomes)
    within_reach = sum(
        int(marks[max(outcome.prefix, SINK_TOKENS) :].sum())
        for marks, outcome in zip(seen, outcomes, strict=True)
    )
    return Recovery(
        prompts=len(prompts),
        tokens=total,
        prefix=_percent(prefix, total),
        irminsul=served_percent(outcomes),
        bound=_percent(prefix + within_reach, total),
        spans_per_prompt=spans_per_prompt(outcomes),
        depth=max(outcome.depth for outcome in outcomes),
    )


def served_percent(outcomes: Sequence[Outcome]) -> float:
    total = sum(outcome.prompt for outcome in outcomes)
    return _percent(sum(outcome.prefix + outcome.reused for outcome in outcomes), total)


def spans_per_prompt(outcomes: Sequence[Outcome]) -> float:
    return round(sum(outcome.spans for outcome in outcomes) / len(outcomes), 2)


def capacities(prompts: Sequence[Tokens]) -> dict[str, int]:
    """A tenth of the set's unique tokens, counted as prefixes and, fewer, as content."""
    tree = RadixCache()
    for prompt in prompts:
        tree.insert(prompt)
    new = sum(int((~marks).sum()) for marks in seen_before(prompts))
    return {"unique prefixes": tree.tokens // 10, "unique content": new // 10}


def finite(prompts: Sequence[Tokens], capacity: int) -> Finite:
    plain = RadixCache(capacity)
    prefix = 0
    for prompt in prompts:
        prefix += min(plain.match(prompt)[0], len(prompt) - 1)
        plain.insert(prompt)
    total = sum(map(len, prompts))
    served = served_percent(replay(prompts, IrminsulCache(capacity)))
    return Finite(capacity, _percent(prefix, total), served)


def shuffled_batches(
    documents: Sequence[Tokens], head: Tokens, tail: Tokens, batches: int, size: int, seed: int
) -> Iterator[list[Tokens]]:
    rng = np.random.default_rng(seed)
    for _ in range(batches):
        orders = [rng.permutation(len(documents)) for _ in range(size)]
        yield [np.concatenate([head, *(documents[i] for i in order), tail]) for order in orders]


def steady(batches: Iterator[list[Tokens]], capacity: int) -> Steady:
    cache = IrminsulCache(capacity)
    reused, prefix, stored = [], [], []
    for batch in batches:
        outcomes = replay(batch, cache)
        total = sum(outcome.prompt for outcome in outcomes)
        reused.append(_percent(sum(outcome.reused for outcome in outcomes), total))
        prefix.append(_percent(sum(outcome.prefix for outcome in outcomes), total))
        stored.append(cache.registry.stats()["resident_tokens"])
    return Steady(capacity, reused, prefix, stored)


def edited(before: Tokens, after: Tokens) -> Outcome:
    """Serve a prompt, then its edited form, in an otherwise empty cache."""
    cache = IrminsulCache()
    cache.serve(before)
    return cache.serve(after)
