"""Answers of two attention backends to the same requests -> whether they differ by rounding only.

Knows tokens and the logprobs of the two likeliest at each step. Greedy answers part where two
tokens are nearly as likely; up to there both backends have seen the same, and are compared.
"""

from __future__ import annotations

import itertools
from typing import Any

Answer = dict[str, Any]


def parted(ours: Answer, theirs: Answer) -> tuple[int, float | None, float]:
    """Compare one answer.

    Returns
    -------
    steps : int
        Tokens before they part, all of them if they do not.
    margin : float or None
        How much likelier their token was than their second, where they part.
    noise : float
        Largest difference of a logprob that both state, up to there.
    """
    pairs = zip(ours["tokens"], theirs["tokens"], strict=False)
    steps = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    noise = 0.0
    for a, b in list(zip(ours["logprobs"], theirs["logprobs"], strict=False))[: steps + 1]:
        mine = {token: logprob for logprob, token in a}
        shared = [abs(mine[token] - logprob) for logprob, token in b if token in mine]
        noise = max([noise, *shared])
    if steps == min(len(ours["tokens"]), len(theirs["tokens"])):
        return steps, None, noise
    first, second = (logprob for logprob, _ in theirs["logprobs"][steps][:2])
    return steps, first - second, noise


def summary(ours: list[Answer], theirs: list[Answer]) -> dict[str, Any]:
    """Return how many answers are equal, the largest margin at a parting, and the noise."""
    compared = [parted(a, b) for a, b in zip(ours, theirs, strict=True)]
    margins = [margin for _, margin, _ in compared if margin is not None]
    return {
        "answers": len(compared),
        "equal": len(compared) - len(margins),
        "steps_equal": sum(steps for steps, _, _ in compared),
        "steps": sum(len(answer["tokens"]) for answer in theirs),
        "margin": round(max(margins, default=0.0), 5),
        "noise": round(max((noise for _, _, noise in compared), default=0.0), 5),
        "cached_alike": [a["cached"] for a in ours] == [b["cached"] for b in theirs],
    }


def by_rounding(found: dict[str, Any], usual: float) -> bool:
    """Return whether no answer parted where the margin was above what rounding explains.

    Parameters
    ----------
    usual
        A logprob's difference between two stock backends, or between one's two runs.
    """
    limit = 2 * max(found["noise"], usual)
    return bool(found["margin"] <= limit and found["noise"] <= 4 * usual)
