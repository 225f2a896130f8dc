"""Answers that a load must not change -> how far each is from the one taken on the idle engine.

Must not know what the load is, or which cache the engine has.

The same prompt at temperature 0 may answer otherwise under load without any defect: a product's
last bits depend on how many requests share the batch, and attention splits longer batches
elsewhere. So an answer is measured by its logprobs, token by token as far as both answers agree and
at the first token where they part. What a defect would look like is measured too: the same prompts
with one wrong id, and with one wrong row of the KV cache where the engine can be made to read one.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from common import Ids
from rows import Row, row

ANSWER = 16  # tokens of an answer
BEST = 10  # tokens at each place whose logprobs are compared
TRIALS = 32  # prompts with one wrong id
SUMS = ("asked", "flipped", "apart", "beyond")
SETTLED, SETTLING = 0.05, 20  # nats between two answers that agree, and how often to ask

Ask = Callable[[Ids], Awaitable[tuple[dict[str, Any], list[int]]]]


@dataclass(frozen=True)
class Answer:
    """The tokens of an answer, and the logprobs of the best ones at each place."""

    tokens: list[int]
    best: list[dict[int, float]]
    retracted: int = 0

    def apart(self, other: Answer) -> tuple[float, bool]:
        """Return the largest difference of logprobs, in nats, and whether other tokens came out."""
        widest = 0.0
        for index, (one, two) in enumerate(zip(self.best, other.best, strict=True)):
            # A token that only one of the two names is at most as likely as the other's last.
            floors = min(one.values()), min(two.values())
            widest = max(
                [widest]
                + [abs(one.get(t, floors[0]) - two.get(t, floors[1])) for t in one.keys() | two]
            )
            if self.tokens[index] != other.tokens[index]:
                return widest, True
        return widest, False


@dataclass
class Bystanders:
    """Fixed prompts and their answers, and the distances that have been seen.

    Parameters
    ----------
    ask
        Sends a prompt and returns its metadata, with logprobs, and its tokens.
    vocabulary
        Ids below this may stand in a prompt.
    """

    ask: Ask
    vocabulary: int
    known: list[tuple[Ids, Answer]] = field(default_factory=list)
    apart: list[float] = field(default_factory=list)
    by_prompt: dict[int, list[tuple[float, bool]]] = field(default_factory=dict)
    flipped: list[float] = field(default_factory=list)
    retracted: list[float] = field(default_factory=list)
    one_wrong_id: list[float] = field(default_factory=list)
    one_wrong_row: list[float] = field(default_factory=list)

    async def add(self, ids: Ids) -> None:
        """Take the answer to `ids` while nothing else runs, as two answers in a row agree on it.

        One alone may be off where others use the GPU, and would spoil every comparison with it.
        """
        answer = await self._answer(ids)
        for _ in range(SETTLING):
            again = await self._answer(ids)
            if again.apart(answer)[0] < SETTLED:
                break
            answer = again
        self.known.append((ids, answer))

    async def spoil(self, random: np.random.Generator, row_file: Path | None = None) -> None:
        """Measure prompts with one wrong id, and with one wrong row, while nothing else runs.

        Parameters
        ----------
        row_file
            While this file exists decode steps read another token's row at the place it names.
        """
        for trial in range(TRIALS):
            ids, answer = self.known[trial % len(self.known)]
            wrong = ids.copy()
            place = int(random.integers(len(ids) - 1))
            wrong[place] = 2 + (wrong[place] - 1) % (self.vocabulary - 2)
            self.one_wrong_id.append(answer.apart(await self._answer(wrong))[0])
            if row_file is not None:
                row_file.write_text(str(place))
                self.one_wrong_row.append(answer.apart(await self._answer(ids))[0])
                row_file.unlink()

    async def check(self, number: int) -> None:
        """Ask for the answer to one prompt again."""
        ids, answer = self.known[number]
        again = await self._answer(ids)
        apart, flipped = answer.apart(again)
        self.apart.append(apart)
        self.by_prompt.setdefault(number, []).append((apart, flipped))
        if flipped:
            self.flipped.append(apart)
        if again.retracted:
            self.retracted.append(apart)

    def wrong(self) -> int:
        """Return how many answers were as far off as a wrong row would put them."""
        return sum(apart > self.visible() for apart in self.apart)

    def visible(self) -> float:
        """Return the distance that nine of ten wrong ids exceed."""
        return float(np.percentile(self.one_wrong_id, 10)) if self.one_wrong_id else 0.0

    def facts(self) -> dict[str, Any]:
        """Return what was seen, in nats."""
        return {
            "asked": len(self.apart),
            "flipped": len(self.flipped),
            "apart": spread(self.apart),
            "apart_where_flipped": spread(self.flipped),
            "retracted": len(self.retracted),
            "apart_where_retracted": spread(self.retracted),
            "one_wrong_id": spread(self.one_wrong_id),
            "one_wrong_row": spread(self.one_wrong_row),
            "by_prompt": {number: _prompt(seen) for number, seen in sorted(self.by_prompt.items())},
            "beyond": {str(at): sum(x > at for x in self.apart) for at in (0.1, 0.2, 0.5, 1.0)},
        }

    async def _answer(self, ids: Ids) -> Answer:
        meta, tokens = await self.ask(ids)
        best = [
            {int(token): float(value) for value, token, *_ in place}
            for place in meta["output_top_logprobs"]
        ]
        return Answer(tokens, best, int(meta.get("num_retractions", 0)))


def spread(values: list[float]) -> dict[str, float]:
    """Return quantiles of `values`; nothing of nothing."""
    if not values:
        return {}
    at = {"least": 0, "p10": 10, "p50": 50, "p99": 99, "most": 100}
    return {name: round(float(np.percentile(values, q)), 4) for name, q in at.items()}


def _prompt(seen: list[tuple[float, bool]]) -> dict[str, float]:
    """Return what was seen of one prompt: answers are no samples of their own, prompts are."""
    apart = [off for off, _ in seen]
    found: dict[str, float] = {"asked": len(seen), "flipped": sum(flip for _, flip in seen)}
    return found | {name: spread(apart)[name] for name in ("p50", "most")}


def compared(mine: Path, control: Path, *more: Path) -> list[Row]:
    """Return irminsul's run, and beside it the same load on SGLang's own cache.

    Parameters
    ----------
    mine, control
        Results of two runs of ``soak.py``.
    *more
        Results of runs that were arranged otherwise: the sums of what they saw are kept.
    """
    own = json.loads(mine.read_text())["rows"]
    beside = [_seen(json.loads(path.read_text())["rows"]) for path in (control, *more)]
    one, other = _seen(own)["bystanders"], beside[0]["bystanders"]
    # What one wrong row would be at least, but for the few ids that hardly matter.
    visible = other["one_wrong_id"]["p10"]
    flips = [side["flipped"] / side["asked"] for side in (one, other)]
    apart = "logprobs of bystanders apart from idle"
    rows: list[tuple[str, float, float, str | None]] = [
        (f"{apart}, most", one["apart"]["most"], other["apart"]["most"], f"< {visible}"),
        (f"{apart}, p99", one["apart"]["p99"], other["apart"]["p99"], None),
        ("one wrong id in a prompt, p10", one["one_wrong_id"]["p10"], visible, None),
        ("bystanders that flip a token", round(flips[0], 4), round(flips[1], 4), None),
    ]
    found = [
        row(
            "sglang.7",
            "beside SGLang's own cache",
            metric,
            value,
            "1" if "flip" in metric else "nats",
        )
        | {"rival": "stock", "rival_value": rival, "bar": bar, "samples": one["asked"]}
        for metric, value, rival, bar in rows
    ]
    for side in beside[1:]:
        side["bystanders"] = {name: side["bystanders"][name] for name in SUMS}
    return [*own, *found, *({**side, "bar": None} for side in beside)]


def _seen(rows: list[Row]) -> Row:
    return next(row for row in rows if "bystanders" in row)
