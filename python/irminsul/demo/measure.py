"""Two engines' answers to the same prompts -> one `Turn` of figures per prompt, and a `Summary`.

Must not know how engines are started or how figures are shown.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from irminsul.demo.engine import Answer
from irminsul.demo.prompts import Prompt

__all__ = ["Summary", "Turn", "compare", "summarise"]


@dataclass(frozen=True, slots=True)
class Turn:
    """One prompt, served with irminsul and without.

    Attributes
    ----------
    session, turn
        Which prompt.
    prompt_tokens : int
        ``prefix_tokens + reused_tokens + computed_tokens``.
    prefix_tokens : int
        Found by the prefix cache, at unchanged positions from the start on.
    reused_tokens : int
        Found by content and moved to their new positions by irminsul.
    computed_tokens : int
        Left to the model.
    ttft_s, plain_ttft_s : float
        Time to first token with irminsul and without, in seconds.
    logits_difference : float
        Largest absolute difference of the first token's logits between the two.
    logits_spread : float
        Standard deviation of the logits without irminsul, to judge the difference by.
    same_token : bool
        Both chose the same first token.
    """

    session: str
    turn: int
    prompt_tokens: int
    prefix_tokens: int
    reused_tokens: int
    computed_tokens: int
    ttft_s: float
    plain_ttft_s: float
    logits_difference: float
    logits_spread: float
    same_token: bool

    @property
    def speedup(self) -> float:
        """Return how many times sooner the first token came with irminsul."""
        return self.plain_ttft_s / self.ttft_s


@dataclass(frozen=True, slots=True)
class Summary:
    """What holds after the first call of each session, where something can be reused.

    Attributes
    ----------
    turns : int
        Calls counted.
    reused_share, prefix_share, computed_share : float
        Of all their prompt tokens; they add up to 1.
    ttft_s, plain_ttft_s : float
        Medians of the time to first token, in seconds.
    speedup : float
        Median over the calls of each call's ratio.
    slower_turns : int
        Calls whose first token came later with irminsul.
    logits_difference, logits_spread : float
        The largest difference of any call, and the median spread to judge it by.
    same_tokens : int
        Calls with the same first token on both sides.
    """

    turns: int
    reused_share: float
    prefix_share: float
    computed_share: float
    ttft_s: float
    plain_ttft_s: float
    speedup: float
    slower_turns: int
    logits_difference: float
    logits_spread: float
    same_tokens: int


def compare(prompt: Prompt, reuse: Answer, plain: Answer) -> Turn:
    """Return the figures of one prompt from its two answers."""
    total = len(prompt.ids)
    return Turn(
        session=prompt.session,
        turn=prompt.turn,
        prompt_tokens=total,
        prefix_tokens=reuse.prefix_tokens,
        reused_tokens=reuse.cached_tokens - reuse.prefix_tokens,
        computed_tokens=total - reuse.cached_tokens,
        ttft_s=reuse.seconds,
        plain_ttft_s=plain.seconds,
        logits_difference=float(np.abs(reuse.logits - plain.logits).max()),
        logits_spread=float(plain.logits.std()),
        same_token=reuse.token == plain.token,
    )


def later_turns(turns: Iterable[Turn]) -> list[Turn]:
    """Return the turns without the first one of each session."""
    seen: set[str] = set()
    later = []
    for turn in turns:
        if turn.session in seen:
            later.append(turn)
        seen.add(turn.session)
    return later


def summarise(turns: Sequence[Turn]) -> Summary | None:
    """Return the summary of all calls after each session's first; None when there are none."""
    later = later_turns(turns)
    if not later:
        return None
    total = sum(turn.prompt_tokens for turn in later)
    return Summary(
        turns=len(later),
        reused_share=sum(turn.reused_tokens for turn in later) / total,
        prefix_share=sum(turn.prefix_tokens for turn in later) / total,
        computed_share=sum(turn.computed_tokens for turn in later) / total,
        ttft_s=statistics.median(turn.ttft_s for turn in later),
        plain_ttft_s=statistics.median(turn.plain_ttft_s for turn in later),
        speedup=statistics.median(turn.speedup for turn in later),
        slower_turns=sum(turn.ttft_s >= turn.plain_ttft_s for turn in later),
        logits_difference=max(turn.logits_difference for turn in later),
        logits_spread=statistics.median(turn.logits_spread for turn in later),
        same_tokens=sum(turn.same_token for turn in later),
    )
