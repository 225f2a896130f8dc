"""A world of documents -> the requests of a cache's life, the last of which is judged.

Must not know models, caches or arms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tasks

SCENARIOS = ("shifted", "reordered", "deleted", "chain")
CHAIN_REQUESTS = 10


@dataclass(frozen=True)
class Trial:
    """Requests that filled the cache, and what is asked then.

    Parameters
    ----------
    history
        Prompts that came before, in order.
    context
        The judged prompt without its question.
    questions
        What may be asked; each makes one sample.
    """

    history: tuple[tuple[int, ...], ...]
    context: tuple[int, ...]
    questions: tuple[tasks.Question, ...]


@dataclass(frozen=True)
class Maker:
    """Draws trials of one length; the same seed and index give the same trial.

    Parameters
    ----------
    reading
        For a model that follows links as it reads: chains are told from their end to their start in
        the judged prompt, and earlier prompts have other orders.
    """

    tokens: int
    documents: int
    filler: tasks.Filler
    seed: int = 0
    reading: bool = False

    def trial(self, scenario: str, index: int) -> Trial:
        """Return trial `index` of a scenario: one question of each kind over one world."""
        rng = np.random.default_rng([self.seed, SCENARIOS.index(scenario), index])
        shape = tasks.Shape(
            self.tokens, self.documents, len(tasks.KINDS), 0.1, backwards=self.reading
        )
        world = tasks.make_world(rng, self.filler, shape, _EACH, held_out=True, each=tasks.KINDS)
        return _BUILDERS[scenario](self, rng, world)

    def header(self, rng: np.random.Generator) -> tasks.Tokens:
        """BOS and 40 to 199 words, or every other time 1 to 30, that no other request has."""
        short = rng.random() < 0.5
        words = self.filler.cut(rng, int(rng.integers(1, 31) if short else rng.integers(40, 200)))
        return np.concatenate([[tasks.BOS], words])


_EACH = dict.fromkeys(tasks.KINDS, 1.0)


def _flat(*parts: tasks.Tokens) -> tuple[int, ...]:
    return tuple(np.concatenate(parts).tolist())


def _shifted(maker: Maker, rng: np.random.Generator, world: tasks.World) -> Trial:
    """The same documents behind another header."""
    before = _flat(maker.header(rng), *world.documents)
    after = _flat(maker.header(rng), *world.documents)
    return Trial((before,), after, world.questions)


def _reordered(maker: Maker, rng: np.random.Generator, world: tasks.World) -> Trial:
    """The same documents in another order, behind another header."""
    order = rng.permutation(len(world.documents))
    changed = tuple(world.documents[i] for i in order)
    first, last = (changed, world.documents) if maker.reading else (world.documents, changed)
    before, after = _flat(maker.header(rng), *first), _flat(maker.header(rng), *last)
    return Trial((before,), after, world.questions)


def _deleted(maker: Maker, rng: np.random.Generator, world: tasks.World) -> Trial:
    """A fifth of the documents goes, the header stays; what is asked for stays too.

    Where every document is needed, the earlier prompt has one more, without facts.
    """
    header, documents = maker.header(rng), list(world.documents)
    spare = [i for i, text in enumerate(documents) if not _needed(text, world)]
    if not spare:
        spare = [int(rng.integers(len(documents) // 2 + 1))]
        documents.insert(spare[0], maker.filler.cut(rng, maker.tokens // len(documents)))
    gone = set(rng.permutation(spare)[: max(1, len(documents) // 5)].tolist())
    before = _flat(header, *documents)
    after = _flat(header, *(text for i, text in enumerate(documents) if i not in gone))
    return Trial((before,), after, world.questions)


def _needed(text: tasks.Tokens, world: tasks.World) -> bool:
    return bool(np.isin(text, list(world.asked)).any())


def _chain(maker: Maker, rng: np.random.Generator, world: tasks.World) -> Trial:
    """Ten requests of a session: a new header each time, two documents change places."""
    order = np.arange(len(world.documents))
    orders = []
    for _ in range(CHAIN_REQUESTS):
        orders.append(order.copy())
        left, right = rng.choice(len(order), size=2, replace=False)
        order[[left, right]] = order[[right, left]]
    if maker.reading:
        orders.reverse()
    prompts = [_flat(maker.header(rng), *(world.documents[i] for i in o)) for o in orders]
    return Trial(tuple(prompts[:-1]), prompts[-1], world.questions)


_BUILDERS: dict[str, Callable[[Maker, np.random.Generator, tasks.World], Trial]] = {
    "shifted": _shifted,
    "reordered": _reordered,
    "deleted": _deleted,
    "chain": _chain,
}
