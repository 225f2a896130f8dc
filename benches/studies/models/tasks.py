"""A seed -> documents that hold facts, and questions whose answers are exact.

Must not know models, caches or files.

A *fact* is a few tokens inside a document of filler. Six kinds of question ask for them:

    single   LINK a b .                          ASK1 a -> b .
    hop2     LINK a b . LINK b c .               ASK2 a -> c .
    hop3     three links, in three documents     ASK3 a -> d .
    vars     SET x 17 . SET y x . SET z y .      ASKV z -> 17 .
    multi    three single facts                  ASKM a a' a'' THEN -> b b' b'' .
    tool     TOOL a g1..g4 d1..d4 .              ASKT a -> g1..g4 d1..d4 .

Training never shows a fact whose two ends are a pair in `HELD_OUT`, a random sixteenth of all
pairs; the facts that an evaluation asks for are all of that kind. So nothing that is asked can have
been learnt by heart. The pairs follow no rule, since a rule would be learnt: when they were those
that differ by 7 modulo 8, a model ruled out just the right answers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int64]

PAD, BOS, EOS, DOC, END, DOT, LINK, SET, TOOL, THEN = range(10)
ASK1, ASK2, ASK3, ASKV, ASKM, ASKT = range(10, 16)
GLYPHS = range(32, 96)
WORDS = range(96, 352)
NAMES = range(352, 864)
NUMBERS = range(864, 1024)
VOCABULARY = 1024

KINDS = ("single", "hop2", "hop3", "vars", "multi", "tool")
HELD_OUT = [
    row.tobytes() for row in np.random.default_rng(2024).random((VOCABULARY, VOCABULARY)) < 1 / 16
]
"""``HELD_OUT[a][b]`` is 1 when training shows no fact that leads from token a to token b."""


@dataclass(frozen=True)
class Question:
    """What follows the documents: `prompt` is given, `answer` is expected, both as token ids."""

    kind: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True)
class World:
    """Documents, what can be asked about them, and the names in the facts that answer it."""

    documents: tuple[Tokens, ...]
    questions: tuple[Question, ...]
    asked: frozenset[int]

    def tokens(self) -> Tokens:
        """BOS, all documents, all questions with their answers."""
        tail = [t for q in self.questions for t in (*q.prompt, *q.answer)]
        return np.concatenate([[BOS], *self.documents, np.array(tail, dtype=np.int64)])


class Unlucky(ValueError):
    """No token is left that may follow another one."""


@dataclass
class _Draw:
    """Names of one world, none of them given out twice."""

    rng: np.random.Generator
    names: int
    unused: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.unused = (NAMES.start + self.rng.permutation(self.names)).tolist()

    def start(self) -> int:
        if not self.unused:
            raise Unlucky("no name is left")
        return self.unused.pop()

    def after(self, token: int, held_out: bool) -> int:
        """Take a name that may follow `token` in a fact."""
        row = HELD_OUT[token]
        for index in range(len(self.unused) - 1, -1, -1):
            if row[self.unused[index]] == held_out:
                return self.unused.pop(index)
        raise Unlucky(f"no name may follow {token}")

    def other(self, token: int, pool: range, held_out: bool) -> int:
        """Draw a token of another pool, which may come again, that may follow `token`."""
        row = HELD_OUT[token]
        fit = [other for other in pool if row[other] == held_out]
        if not fit:
            raise Unlucky(f"nothing in {pool} may follow {token}")
        return fit[int(self.rng.integers(len(fit)))]


Facts = list[tuple[int, ...]]
Maker = Callable[["_Draw", bool], tuple[Facts, "Question"]]


def _chain(draw: _Draw, links: int, held_out: bool) -> tuple[list[int], Facts]:
    names = [draw.start()]
    for _ in range(links):
        names.append(draw.after(names[-1], held_out))
    facts: Facts = [(LINK, a, b, DOT) for a, b in itertools.pairwise(names)]
    return names, facts


def _hops(hops: int) -> Maker:
    ask = (ASK1, ASK2, ASK3)[hops - 1]
    kind = ("single", "hop2", "hop3")[hops - 1]

    def make(draw: _Draw, held_out: bool) -> tuple[Facts, Question]:
        names, facts = _chain(draw, hops, held_out)
        return facts, Question(kind, (ask, names[0]), (names[-1], DOT))

    return make


def _vars(draw: _Draw, held_out: bool) -> tuple[Facts, Question]:
    length = int(draw.rng.integers(1, 4))
    names, links = _chain(draw, length - 1, held_out)
    value = draw.other(names[-1], NUMBERS, held_out)
    facts: Facts = [(SET, fact[1], fact[2], DOT) for fact in links]
    return [*facts, (SET, names[-1], value, DOT)], Question("vars", (ASKV, names[0]), (value, DOT))


def _multi(draw: _Draw, held_out: bool) -> tuple[Facts, Question]:
    pairs = [_chain(draw, 1, held_out) for _ in range(3)]
    facts = [fact for _, part in pairs for fact in part]
    keys = tuple(names[0] for names, _ in pairs)
    values = tuple(names[1] for names, _ in pairs)
    return facts, Question("multi", (ASKM, *keys, THEN), (*values, DOT))


def _tool(draw: _Draw, held_out: bool) -> tuple[Facts, Question]:
    name = draw.start()
    call = [draw.other(name, GLYPHS, held_out)]
    call += (GLYPHS.start + draw.rng.integers(len(GLYPHS), size=7)).tolist()
    return [(TOOL, name, *call, DOT)], Question("tool", (ASKT, name), (*call, DOT))


_MAKERS: dict[str, Maker] = {
    "single": _hops(1),
    "hop2": _hops(2),
    "hop3": _hops(3),
    "vars": _vars,
    "multi": _multi,
    "tool": _tool,
}


class Filler:
    """Endless text of words, each followed by one of eight: a fixed first-order Markov chain."""

    def __init__(self, seed: int = 0, length: int = 1 << 18) -> None:
        rng = np.random.default_rng(seed)
        following = rng.integers(len(WORDS), size=(len(WORDS), 8))
        choice = rng.integers(8, size=length)
        words = np.empty(length, dtype=np.int64)
        word = 0
        for i in range(length):
            word = following[word, choice[i]]
            words[i] = word
        self._words = words + WORDS.start

    def cut(self, rng: np.random.Generator, length: int) -> Tokens:
        """Return a copy of `length` words from a random place."""
        start = int(rng.integers(len(self._words) - length + 1))
        return self._words[start : start + length].copy()


def _lay_out(
    rng: np.random.Generator,
    filler: Filler,
    groups: Sequence[Facts],
    lengths: Sequence[int],
    backwards: bool,
) -> tuple[Tokens, ...]:
    """Spread the facts over documents, those of one group over different ones where possible."""
    inside: list[Facts] = [[] for _ in lengths]
    for facts in groups:
        many = len(facts) <= len(lengths)
        places = rng.choice(len(lengths), size=len(facts), replace=not many)
        if backwards:
            places = np.sort(places)[::-1]
        for place, fact in zip(places.tolist(), facts, strict=True):
            inside[place].append(fact)
    _even_out(rng, inside, lengths)
    return tuple(
        _document(rng, filler, part, length) for part, length in zip(inside, lengths, strict=True)
    )


def _even_out(rng: np.random.Generator, inside: list[Facts], lengths: Sequence[int]) -> None:
    """Move facts from documents that are too full to the emptiest ones."""
    room = [length - 2 - sum(map(len, part)) for length, part in zip(lengths, inside, strict=True)]
    for _ in range(100):
        full, free = int(np.argmin(room)), int(np.argmax(room))
        if room[full] >= 0:
            return
        fact = inside[full].pop(int(rng.integers(len(inside[full]))))
        inside[free].append(fact)
        room[full] += len(fact)
        room[free] -= len(fact)
    raise ValueError(f"facts do not fit into documents of {list(lengths)} tokens: room {room}")


def _document(rng: np.random.Generator, filler: Filler, facts: Facts, length: int) -> Tokens:
    text = filler.cut(rng, length)
    text[0], text[-1] = DOC, END
    if not facts:
        return text
    order = rng.permutation(len(facts))
    sizes = np.array([len(facts[i]) for i in order])
    space = length - 2 - int(sizes.sum())
    gaps = np.sort(rng.integers(space + 1, size=len(facts)))
    starts = 1 + gaps + np.cumsum(sizes) - sizes
    for start, index in zip(starts.tolist(), order.tolist(), strict=True):
        text[start : start + len(facts[index])] = facts[index]
    return text


@dataclass(frozen=True)
class Shape:
    """How large a world is.

    Parameters
    ----------
    tokens
        Length of everything: BOS, documents, questions with their answers.
    documents
        How many documents.
    questions
        How many questions are asked; each has facts of its own.
    distractors
        Part of the documents' tokens that facts nobody asks for take, of the same kinds.
    names
        How many different names may occur.
    backwards
        Whether chains are told from their end to their start, so that a reader knows at each fact
        where it leads; at random otherwise.
    """

    tokens: int
    documents: int
    questions: int
    distractors: float = 0.15
    names: int = len(NAMES)
    backwards: bool = False


def make_world(
    rng: np.random.Generator,
    filler: Filler,
    shape: Shape,
    mix: dict[str, float],
    *,
    held_out: bool = False,
    each: Sequence[str] = (),
) -> World:
    """Draw documents and questions.

    Parameters
    ----------
    mix
        Weight of each kind of question, see `KINDS`.
    held_out
        Whether the facts that are asked for are those that training never shows.
    each
        Ask one question of each of these kinds, whatever `shape.questions` and `mix` say.
    """
    draw = _Draw(rng, shape.names)
    share = np.cumsum([mix.get(kind, 0.0) for kind in KINDS])
    if each:
        made = [_make_kind(draw, kind, held_out) for kind in each]
    else:
        made = [_make(draw, share, held_out) for _ in range(shape.questions)]
    asked = sum(len(fact) for facts, _ in made for fact in facts)
    tail = sum(len(question.prompt) + len(question.answer) for _, question in made)
    room = shape.tokens - 1 - tail
    spare = min(shape.distractors * room, 0.8 * room - asked)
    groups = [facts for facts, _ in made]
    groups += _distractors(draw, share, int(spare))
    documents = _lay_out(rng, filler, groups, _split(rng, room, shape.documents), shape.backwards)
    asked = frozenset(t for facts, _ in made for fact in facts for t in fact if t in NAMES)
    return World(documents, tuple(question for _, question in made), asked)


def _make(draw: _Draw, share: npt.NDArray[np.float64], held_out: bool) -> tuple[Facts, Question]:
    kind = KINDS[int(np.searchsorted(share, draw.rng.random() * share[-1], side="right"))]
    return _make_kind(draw, kind, held_out)


def _make_kind(draw: _Draw, kind: str, held_out: bool) -> tuple[Facts, Question]:
    """Make a question; a name that nothing may follow is left out."""
    while True:
        before = len(draw.unused)
        try:
            return _MAKERS[kind](draw, held_out)
        except Unlucky:
            if before < 16:
                raise


def _distractors(draw: _Draw, share: npt.NDArray[np.float64], room: int) -> Iterator[Facts]:
    """Facts of unasked questions that fill up to `room` tokens, while names last."""
    while len(draw.unused) > 64:
        facts, _ = _make(draw, share, False)
        room -= sum(map(len, facts))
        if room < 0:
            return
        yield facts


def _split(rng: np.random.Generator, tokens: int, parts: int) -> list[int]:
    """Lengths of `parts` documents, within a quarter of one another, that add up to `tokens`."""
    if tokens < 16 * parts:
        raise ValueError(f"{tokens} tokens are too few for {parts} documents")
    weights = rng.uniform(0.8, 1.2, size=parts)
    lengths = np.floor(weights / weights.sum() * tokens).astype(int)
    lengths[-1] += tokens - lengths.sum()
    return lengths.tolist()  # type: ignore[no-any-return]
