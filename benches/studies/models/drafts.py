"""Curriculum stages and random numbers -> what all rows of a batch hold: facts and questions.

Must not know tensors or models. An outline names columns of a table of tokens that each row has.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

import numpy as np
import tasks


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
class Asked:
    """A question's place, the same in every row.

    Attributes
    ----------
    first, end
        Positions of the answer's tokens.
    """

    kind: str
    first: int
    end: int


_DISTRACTORS = (0.0, 0.05, 0.05, 0.15, 0.3)
# Facts, prompt and answer together.
_TOKENS_PER_QUESTION = {"single": 8, "hop2": 12, "hop3": 16, "vars": 12, "multi": 21, "tool": 22}
_ONE = {"single": 1.0}
_TWO = {"single": 1.0, "hop2": 1.0}
_FIRST = {"single": 2.0, "hop2": 2.0, "hop3": 0.7, "vars": 0.7, "multi": 0.3, "tool": 0.5}
_EVEN = {"single": 1.0, "hop2": 1.5, "hop3": 1.0, "vars": 1.0, "multi": 0.5, "tool": 0.7}


def curriculum(max_length: int, batch_tokens: int) -> list[Stage]:
    """Short rows with many lookups first: that is where induction appears; then longer ones."""
    lookup = {"single": 0.95}
    hops = {"single": 0.97, "hop2": 0.9}
    stages = [
        Stage((64,), batch_tokens // 4, _ONE, lookup, 0.04, names=128),
        Stage((64, 128), batch_tokens // 4, _TWO, hops, 0.09, names=256),
        Stage((64, 128), batch_tokens // 2, _FIRST, hops, 0.14),
        Stage((64, 128, 256), batch_tokens, _FIRST, hops, 0.2),
        Stage((64, 128, 256, 512), batch_tokens, _EVEN, hops, 0.26),
        Stage((128, 256, 512, 1024), batch_tokens, _EVEN, hops, 0.32),
        Stage((128, 512, 1024, 2048), batch_tokens, _EVEN, hops, 0.38),
        Stage((128, 512, 1024, 2048, 4608), batch_tokens, _EVEN, {}, 1.0),
    ]
    fit = [stage for stage in stages if max(stage.lengths) <= max_length]
    return [*fit[:-1], replace(fit[-1], bars={}, latest=1.0)]


_CHAINS = ("hop2", "hop3", "vars")
MARKERS = 32  # columns for the ids below the first glyph, which stand for themselves
FACT_TOKENS = 11  # tokens of the longest fact


@dataclass
class Outline:
    """What every row of a batch holds, as columns of a table of tokens that each row has.

    Columns are the markers, then the names, then numbers and glyphs in the order of use.
    """

    names: int
    used: int = 0
    pools: list[range] = field(default_factory=list)
    facts: list[tuple[int, list[int]]] = field(default_factory=list)
    pairs: list[tuple[int, int, int]] = field(default_factory=list)
    groups: int = 0
    onward: list[tuple[int, list[int]]] = field(default_factory=list)
    questions: list[tuple[int, str, list[int], list[int], list[int]]] = field(default_factory=list)

    def name(self) -> int:
        self.used += 1
        return MARKERS + self.used - 1

    def other(self, pool: range) -> int:
        self.pools.append(pool)
        return MARKERS + self.names + len(self.pools) - 1

    def chain(self, marker: int, links: int) -> list[int]:
        columns = [self.name() for _ in range(links + 1)]
        for left, right in itertools.pairwise(columns):
            self._fact(marker, left, [right])
        return columns

    def _fact(self, marker: int, left: int, right: list[int]) -> None:
        self.facts.append((self.groups, [marker, left, *right, tasks.DOT]))
        self.pairs.append((self.groups, left, right[0]))

    def add(self, kind: str, rng: np.random.Generator, ask: bool) -> None:
        """Add the facts of one question, and the question when it is asked."""
        first = len(self.facts)
        prompt, answer, steps = getattr(self, f"_{kind}")(rng)
        if kind in _CHAINS:
            ends = [*steps, steps[-1]]
            for index in range(len(self.facts) - first - 1):
                self.onward.append((first + index, ends[index + 1 : index + 3]))
        if ask:
            self.questions.append((self.groups, kind, prompt, [*answer, tasks.DOT], steps))
        self.groups += 1

    def _single(self, _: np.random.Generator) -> tuple[list[int], ...]:
        names = self.chain(tasks.LINK, 1)
        return [tasks.ASK1, names[0]], names[-1:], names[1:]

    def _hop2(self, _: np.random.Generator) -> tuple[list[int], ...]:
        names = self.chain(tasks.LINK, 2)
        return [tasks.ASK2, names[0]], names[-1:], names[1:]

    def _hop3(self, _: np.random.Generator) -> tuple[list[int], ...]:
        names = self.chain(tasks.LINK, 3)
        return [tasks.ASK3, names[0]], names[-1:], names[1:]

    def _vars(self, rng: np.random.Generator) -> tuple[list[int], ...]:
        names = self.chain(tasks.SET, int(rng.integers(0, 3)))
        value = self.other(tasks.NUMBERS)
        self._fact(tasks.SET, names[-1], [value])
        return [tasks.ASKV, names[0]], [value], [*names[1:], value]

    def _multi(self, _: np.random.Generator) -> tuple[list[int], ...]:
        pairs = [self.chain(tasks.LINK, 1) for _ in range(3)]
        keys, values = [a for a, _ in pairs], [b for _, b in pairs]
        return [tasks.ASKM, *keys, tasks.THEN], values, values[:1]

    def _tool(self, _: np.random.Generator) -> tuple[list[int], ...]:
        name = self.name()
        call = [self.other(tasks.GLYPHS) for _ in range(8)]
        self._fact(tasks.TOOL, name, call)
        return [tasks.ASKT, name], call, call[:1]


_NAMES_PER_QUESTION = {"single": 2, "hop2": 3, "hop3": 4, "vars": 3, "multi": 6, "tool": 1}


def draw_outline(rng: np.random.Generator, length: int, stage: Stage) -> Outline:
    """Draw what a row holds: dense with facts when short, sparse later."""
    kinds = list(stage.mix)
    share = np.array(list(stage.mix.values())) / sum(stage.mix.values())
    outline = Outline(stage.names)
    room = (length - 4) * float(rng.uniform(0.3, 0.9))
    spare = float(rng.choice(_DISTRACTORS)) * length
    most = int(rng.integers(8, 73))
    taken = 0
    for ask, limit in ((True, room), (False, spare)):
        limit = min(taken + limit, 0.92 * (length - 4))
        while not (ask and outline.groups >= most):
            kind = str(rng.choice(kinds, p=share))
            full = outline.used + _NAMES_PER_QUESTION[kind] > stage.names
            if full or (taken + _TOKENS_PER_QUESTION[kind] > limit and outline.groups):
                break
            taken += _TOKENS_PER_QUESTION[kind]
            outline.add(kind, rng, ask)
    return outline


def chains_of(outline: Outline) -> list[list[int]]:
    """Facts of each chain of several links, first link first."""
    chains: dict[int, list[int]] = {}
    onward = {outline.facts[fact][0] for fact, _ in outline.onward}
    for index, (group, _) in enumerate(outline.facts):
        if group in onward:
            chains.setdefault(group, []).append(index)
    return list(chains.values())


def tail_of(outline: Outline, length: int) -> tuple[int, list[Asked], list[int]]:
    """Where the questions stand, and which question each of their positions belongs to."""
    sizes = [(kind, len(prompt), len(answer)) for _, kind, prompt, answer, _ in outline.questions]
    tail = length - sum(prompt + answer for _, prompt, answer in sizes)
    asked, number, at = [], [], tail
    for index, (kind, prompt, answer) in enumerate(sizes):
        asked.append(Asked(kind, at + prompt, at + prompt + answer))
        number += [index] * (prompt + answer)
        at += prompt + answer
    return tail, asked, number
