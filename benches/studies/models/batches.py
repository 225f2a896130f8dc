"""Outlines and a seed -> batches of token ids with loss weights, made on the device.

Must not know models. All rows of a batch hold the same kinds of facts and questions, with names,
numbers, order and places of their own; so a batch is a few gathers and sorts, on any device.
Batch number n depends on the seed, n, the stage and the device alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import tasks
import torch
from drafts import (
    FACT_TOKENS,
    MARKERS,
    Asked,
    Outline,
    Stage,
    chains_of,
    draw_outline,
    tail_of,
)
from torch import Tensor

OTHER_WEIGHT = 0.02
"""Loss weight of a token that is no answer: enough to learn the filler, too little to mind it."""


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
        outline = draw_outline(rng, length, stage)
        documents = int(rng.integers(1, max(1, min(40, length // 64)) + 1))
        draw = torch.Generator(self.device).manual_seed(int(rng.integers(1 << 62)))
        table = self._table(outline, rows, draw)
        absent = self._absent(outline, table)
        tokens = self._text(length, rows, draw)
        tail, asked, places = tail_of(outline, length)
        start = self._facts(tokens, outline, table, absent, (documents, tail), draw)
        batch = self._ask(tokens, outline, table, absent, (tail, asked, places))
        if self.reading and outline.onward:
            return replace(batch, read=self._read(outline, table, absent, start))
        return batch

    def _read(self, outline: Outline, table: Tensor, absent: Tensor, start: Tensor) -> Read:
        """Where facts of chains lead on; `start` [rows, items] are the facts' positions."""
        fact = self._put([fact for fact, _ in outline.onward])
        group = self._put([outline.facts[fact][0] for fact, _ in outline.onward])
        columns = self._put([steps for _, steps in outline.onward])
        steps = table[:, columns.flatten()].view(len(table), -1, 2)
        return Read(start[:, fact] + 2, ~absent[:, group], steps)

    def _backwards(self, outline: Outline, keys: Tensor) -> Tensor:
        """Change the order that `keys` [rows, items] give, so that chains come end first."""
        for length in (2, 3):
            chains = [c for c in chains_of(outline) if len(c) == length]
            if chains:
                at = self._put(chains)
                keys[:, at] = keys[:, at].sort(dim=2, descending=True).values
        return keys

    def _put(self, values: list[int] | list[list[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64).to(self.device, non_blocking=True)

    def _table(self, outline: Outline, rows: int, draw: torch.Generator) -> Tensor:
        """Tokens of the outline's columns in every row, [rows, columns]."""
        random = torch.rand(rows, outline.names, generator=draw, device=self.device)
        names = random.argsort(dim=1) + tasks.NAMES.start
        markers = torch.arange(MARKERS, device=self.device).expand(rows, -1)
        first = self._put([pool.start for pool in outline.pools])
        size = self._put([len(pool) for pool in outline.pools])
        random = torch.rand(rows, len(outline.pools), generator=draw, device=self.device)
        return torch.cat([markers, names, first + (random * size).long()], dim=1)

    def _absent(self, outline: Outline, table: Tensor) -> Tensor:
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
        outline: Outline,
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
        columns = self._put([[*fact, *[0] * (FACT_TOKENS - len(fact))] for _, fact in items])
        group = self._put([group for group, _ in items])
        keys = torch.rand(rows, len(items), generator=draw, device=self.device)
        order = (self._backwards(outline, keys) if self.reading else keys).argsort(dim=1)
        size = sizes[order]
        space = tail - 3 - sum(len(fact) for _, fact in items)
        random = torch.rand(rows, len(items), generator=draw, device=self.device)
        gaps = (random * (space + 1)).long().sort(dim=1).values
        start = 2 + gaps + size.cumsum(dim=1) - size
        values = table.gather(1, columns[order].flatten(1))
        within = torch.arange(FACT_TOKENS, device=self.device)
        hidden = absent.gather(1, group[order].clamp(min=0)) & (group[order] >= 0)
        skip = (within >= size[..., None]) | hidden[..., None]
        at = torch.where(skip, dump, start[..., None] + within)
        tokens.scatter_(1, at.flatten(1), values)
        tokens[:, 0], tokens[:, 1], tokens[:, tail - 1] = tasks.BOS, tasks.DOC, tasks.END
        return torch.empty_like(start).scatter_(1, order, start)

    def _ask(
        self,
        tokens: Tensor,
        outline: Outline,
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


def _range(tail: int, number: list[int]) -> range:
    return range(tail, tail + len(number))


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
