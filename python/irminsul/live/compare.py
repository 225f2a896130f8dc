"""Pairs of answers to one prompt -> how far they are apart.

Must not know servers or how an answer came about. Greedy answers of one engine differ by
themselves, because kernels sum in another order for another batch: a difference means something
only beside the difference of two answers that were both computed in full.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from irminsul.live.client import Reply

__all__ = ["Difference", "differences", "first_token_kl"]


@dataclass(frozen=True, slots=True)
class Difference:
    """How a set of answers differs from the set they are compared with, pair by pair.

    Attributes
    ----------
    answers
        Number of pairs.
    flips
        Pairs whose tokens are not all equal.
    first_flip
        Earliest differing token of all pairs, counted from 0; None without flips.
    kl_median, kl_most
        Divergence of the first token's distribution, in nats.
    logprob_most
        Largest difference of a logprob before the tokens part, in nats.
    """

    answers: int
    flips: int
    first_flip: int | None
    kl_median: float
    kl_most: float
    logprob_most: float


def differences(reference: Sequence[Reply], others: Sequence[Reply]) -> Difference:
    """Compare `others` with `reference`, pair by pair; neither may be empty."""
    pairs = list(zip(reference, others, strict=True))
    parted = [at for at in (_parts_at(*pair) for pair in pairs) if at is not None]
    divergences = [first_token_kl(a.first, b.first) for a, b in pairs]
    return Difference(
        answers=len(pairs),
        flips=len(parted),
        first_flip=min(parted, default=None),
        kl_median=statistics.median(divergences),
        kl_most=max(divergences),
        logprob_most=max(_logprob_gap(*pair) for pair in pairs),
    )


def first_token_kl(reference: Mapping[int, float], other: Mapping[int, float]) -> float:
    """Return the Kullback-Leibler divergence of `other` from `reference`, in nats.

    Parameters
    ----------
    reference, other
        Logprobs of the likeliest tokens. What both leave out is one more outcome; a token that
        `other` alone leaves out is taken to be as likely there as the least likely one it names,
        so the result is too small rather than too large.

    Returns
    -------
    float
        At least 0; 0 where either is empty.
    """
    if not reference or not other:
        return 0.0
    floor = min(other.values())
    mine = _completed([math.exp(logprob) for logprob in reference.values()])
    theirs = _completed([math.exp(other.get(token, floor)) for token in reference])
    return max(0.0, sum(p * math.log(p / q) for p, q in zip(mine, theirs, strict=True)))


def _completed(probabilities: list[float]) -> list[float]:
    """Add the rest as one more outcome, and let all sum to one; none is quite zero."""
    outcomes = [max(1e-12, p) for p in (*probabilities, 1.0 - sum(probabilities))]
    total = sum(outcomes)
    return [outcome / total for outcome in outcomes]


def _parts_at(reference: Reply, other: Reply) -> int | None:
    for index, (left, right) in enumerate(zip(reference.tokens, other.tokens, strict=False)):
        if left != right:
            return index
    if len(reference.tokens) != len(other.tokens):
        return min(len(reference.tokens), len(other.tokens))
    return None


def _logprob_gap(reference: Reply, other: Reply) -> float:
    shared = _parts_at(reference, other)
    pairs = list(zip(reference.logprobs, other.logprobs, strict=False))[:shared]
    return max((abs(left - right) for left, right in pairs), default=0.0)
