"""Curriculum stages and a seed -> batches of token ids with loss weights, made on the device.

Must not know models. All rows of a batch hold the same kinds of facts and questions, with names,
numbers, order and places of their own; so a batch is a few gathers and sorts, on any device.
Batch number n depends on the seed, n, the stage and the device alone.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

import numpy as np
import tasks
import torch
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


@dataclass(frozen=True)
class Read:
    """Facts whose right end leads on, in worlds where what it leads to was told before.

    Attributes
    ----------
    at : Tensor, int64, [rows, facts]
        Position of the right end.
    present : Tensor, bool, [rows, facts]
    steps : Tensor, int64, [rows, facts, 2]
        The tokens one and two links further, the last one repeated.
    """

    at: Tensor
    present: Tensor
    steps: Tensor


@dataclass(frozen=True)
class Batch:
    """Rows of one length.

    Attributes
    ----------
    tokens : Tensor, int64, [rows, length]
    weights : Tensor, float32, [rows, length]
        Loss weight of each token as a target.
    tail : int
        Position of the first question.
    asked : list of Asked
    present : Tensor, bool, [rows, len(asked)]
        Whether the row has the question; one that would need a held-out pair is left out.
    steps : Tensor, int64, [rows, len(asked), 3]
        The tokens that a question's first answer token is found by: the end of one, two and three
        links, the last one repeated.
    read : Read, optional
        With `Source.reading`.
    """

    tokens: Tensor
    weights: Tensor
    tail: int
    asked: list[Asked]
    present: Tensor
    steps: Tensor
    read: Read | None = None


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
_MARKERS = 32  # columns for the ids below the first glyph, which stand for themselves
_FACT = 11  # tokens of the longest fact


@dataclass
class _Outline:
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
        return _MARKERS + self.used - 1

    def other(self, pool: range) -> int:
        self.pools.append(pool)
        return _MARKERS + self.names + len(self.pools) - 1

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


def _outline(rng: np.random.Generator, length: int, stage: Stage) -> _Outline:
    """Draw what a row holds: dense with facts when short, sparse later."""
    kinds = list(stage.mix)
    share = np.array(list(stage.mix.values())) / sum(stage.mix.values())
    outline = _Outline(stage.names)
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


class Source:
    """Makes batches on a device.

    Parameters
    ----------
    reading
        Tell the links of a chain from its end to its start, so that a reader knows at each fact
        where it leads, and say so in `Batch.read`.
    """

    def __init__(self, seed: int, device: torch.device, *, reading: bool = False) -> None:
        self.seed = seed
        self.reading = reading
        self.device = device
        table = [list(row) for row in tasks.HELD_OUT]
        self._held_out = torch.tensor(table, dtype=torch.bool, device=device)
        words = tasks.Filler().cut(np.random.default_rng(seed), (1 << 18) - 1)
        self._filler = torch.from_numpy(words).to(device)

    def batch(self, stage: Stage, index: int, length: int | None = None) -> Batch:
        """Make batch `index` of a stage."""
        rng = np.random.default_rng([self.seed, index, max(stage.lengths)])
        odds = np.arange(1, len(stage.lengths) + 1, dtype=float) ** 2
        length = length or int(rng.choice(stage.lengths, p=odds / odds.sum()))
        rows = max(1, stage.batch_tokens // length)
        outline = _outline(rng, length, stage)
        documents = int(rng.integers(1, max(1, min(40, length // 64)) + 1))
        draw = torch.Generator(self.device).manual_seed(int(rng.integers(1 << 62)))
        table = self._table(outline, rows, draw)
        absent = self._absent(outline, table)
        tokens = self._text(length, rows, draw)
        tail, asked, places = _tail(outline, length)
        start = self._facts(tokens, outline, table, absent, (documents, tail), draw)
        batch = self._ask(tokens, outline, table, absent, (tail, asked, places))
        if self.reading and outline.onward:
            return replace(batch, read=self._read(outline, table, absent, start))
        return batch

    def _read(self, outline: _Outline, table: Tensor, absent: Tensor, start: Tensor) -> Read:
        """Where facts of chains lead on; `start` [rows, items] are the facts' positions."""
        fact = self._put([fact for fact, _ in outline.onward])
        group = self._put([outline.facts[fact][0] for fact, _ in outline.onward])
        columns = self._put([steps for _, steps in outline.onward])
        steps = table[:, columns.flatten()].view(len(table), -1, 2)
        return Read(start[:, fact] + 2, ~absent[:, group], steps)

    def _backwards(self, outline: _Outline, keys: Tensor) -> Tensor:
        """Change the order that `keys` [rows, items] give, so that chains come end first."""
        for length in (2, 3):
            chains = [c for c in _chains(outline) if len(c) == length]
            if chains:
                at = self._put(chains)
                keys[:, at] = keys[:, at].sort(dim=2, descending=True).values
        return keys

    def _put(self, values: list[int] | list[list[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64).to(self.device, non_blocking=True)

    def _table(self, outline: _Outline, rows: int, draw: torch.Generator) -> Tensor:
        """Tokens of the outline's columns in every row, [rows, columns]."""
        random = torch.rand(rows, outline.names, generator=draw, device=self.device)
        names = random.argsort(dim=1) + tasks.NAMES.start
        markers = torch.arange(_MARKERS, device=self.device).expand(rows, -1)
        first = self._put([pool.start for pool in outline.pools])
        size = self._put([len(pool) for pool in outline.pools])
        random = torch.rand(rows, len(outline.pools), generator=draw, device=self.device)
        return torch.cat([markers, names, first + (random * size).long()], dim=1)

    def _absent(self, outline: _Outline, table: Tensor) -> Tensor:
        """Groups of facts that would show a held-out pair, [rows, groups]."""
        group, left, right = self._put([list(pair) for pair in outline.pairs]).T
        bad = self._held_out[table[:, left], table[:, right]]
        absent = torch.zeros(len(table), outline.groups, dtype=torch.int64, device=self.device)
        return absent.index_add_(1, group, bad.long()) > 0

    def _text(self, length: int, rows: int, draw: torch.Generator) -> Tensor:
        """Filler throughout, and one column more, [rows, length + 1]."""
        last = len(self._filler) - length - 1
        start = torch.randint(last, (rows, 1), generator=draw, device=self.device)
        return self._filler[start + torch.arange(length + 1, device=self.device)]

    def _facts(
        self,
        tokens: Tensor,
        outline: _Outline,
        table: Tensor,
        absent: Tensor,
        places: tuple[int, int],
        draw: torch.Generator,
    ) -> Tensor:
        """Write facts and the documents' borders at random places before the questions.

        Return where each of them begins, [rows, items].
        """
        documents, tail = places
        rows, dump = len(tokens), tokens.shape[1] - 1
        border = [(-1, [tasks.END, tasks.DOC])] * (documents - 1)
        items = [*outline.facts, *border]
        sizes = self._put([len(fact) for _, fact in items])
        columns = self._put([[*fact, *[0] * (_FACT - len(fact))] for _, fact in items])
        group = self._put([group for group, _ in items])
        keys = torch.rand(rows, len(items), generator=draw, device=self.device)
        order = (self._backwards(outline, keys) if self.reading else keys).argsort(dim=1)
        size = sizes[order]
        space = tail - 3 - sum(len(fact) for _, fact in items)
        random = torch.rand(rows, len(items), generator=draw, device=self.device)
        gaps = (random * (space + 1)).long().sort(dim=1).values
        start = 2 + gaps + size.cumsum(dim=1) - size
        values = table.gather(1, columns[order].flatten(1))
        within = torch.arange(_FACT, device=self.device)
        hidden = absent.gather(1, group[order].clamp(min=0)) & (group[order] >= 0)
        skip = (within >= size[..., None]) | hidden[..., None]
        at = torch.where(skip, dump, start[..., None] + within)
        tokens.scatter_(1, at.flatten(1), values)
        tokens[:, 0], tokens[:, 1], tokens[:, tail - 1] = tasks.BOS, tasks.DOC, tasks.END
        return torch.empty_like(start).scatter_(1, order, start)

    def _ask(
        self,
        tokens: Tensor,
        outline: _Outline,
        table: Tensor,
        absent: Tensor,
        places: tuple[int, list[Asked], list[int]],
    ) -> Batch:
        """Write the questions; where one is absent, filler stays."""
        tail, asked, number = places
        tokens = tokens[:, :-1]
        columns = [c for _, _, prompt, answer, _ in outline.questions for c in (*prompt, *answer)]
        groups = self._put([question[0] for question in outline.questions])
        present = ~absent[:, groups]
        there = present[:, self._put(number)]
        tokens[:, tail:] = torch.where(there, table[:, self._put(columns)], tokens[:, tail:])
        weights = torch.full(tokens.shape, OTHER_WEIGHT, device=self.device)
        answers = [int(any(a.first <= at < a.end for a in asked)) for at in _range(tail, number)]
        weights[:, tail:] += (1 - OTHER_WEIGHT) * (there & (self._put(answers) > 0))
        steps = [[*s, s[-1], s[-1]][:3] for *_, s in outline.questions]
        found = table[:, self._put(steps).flatten()].view(len(table), len(asked), 3)
        return Batch(tokens, weights, tail, asked, present, found)


def _chains(outline: _Outline) -> list[list[int]]:
    """Facts of each chain of several links, first link first."""
    chains: dict[int, list[int]] = {}
    onward = {outline.facts[fact][0] for fact, _ in outline.onward}
    for index, (group, _) in enumerate(outline.facts):
        if group in onward:
            chains.setdefault(group, []).append(index)
    return list(chains.values())


def _range(tail: int, number: list[int]) -> range:
    return range(tail, tail + len(number))


def _tail(outline: _Outline, length: int) -> tuple[int, list[Asked], list[int]]:
    """Where the questions stand, and which question each of their positions belongs to."""
    sizes = [(kind, len(prompt), len(answer)) for _, kind, prompt, answer, _ in outline.questions]
    tail = length - sum(prompt + answer for _, prompt, answer in sizes)
    asked, number, at = [], [], tail
    for index, (kind, prompt, answer) in enumerate(sizes):
        asked.append(Asked(kind, at + prompt, at + prompt + answer))
        number += [index] * (prompt + answer)
        at += prompt + answer
    return tail, asked, number


def score(right: Tensor, batch: Batch) -> dict[str, float]:
    """Part of the answers that are right in every token, by kind; `right` is [rows, length]."""
    sums: dict[str, Tensor] = {}
    for index, question in enumerate(batch.asked):
        hits = right[:, question.first : question.end].all(dim=1)
        there = batch.present[:, index]
        pair = torch.stack([(hits & there).sum(), there.sum()])
        sums[question.kind] = sums[question.kind] + pair if question.kind in sums else pair
    kinds = list(sums)
    totals = torch.stack([sums[kind] for kind in kinds]).tolist()
    return {k: hit / all_ for k, (hit, all_) in zip(kinds, totals, strict=True) if all_}
