"""What a call of the engine answers, prompt by prompt.

Must not know how it came about.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Generation", "PromptStats"]


@dataclass(frozen=True)
class PromptStats:
    """Where the rows of one prompt came from, in tokens.

    Attributes
    ----------
    prompt, prefix, reused, computed : int
        Prompt length = exact prefix + reused elsewhere + computed.
    spans : int
        Number of stretches that were taken over, the prefix not counted.
    depth : int
        Most layers of approximation that a row of the prompt stands on; 0 means exact.
    """

    prompt: int
    prefix: int
    reused: int
    computed: int
    spans: int
    depth: int


@dataclass(frozen=True, eq=False)
class Generation:
    """One prompt's answer.

    Attributes
    ----------
    tokens : list of int
        New token ids; a stop token is the last one when there is one.
    stats : PromptStats
    logits : Tensor or None, float32, [n, vocabulary]
        Scores behind the positions in `logit_positions`, when they were asked for.
    logit_positions : list of int
        Row ``i`` of `logits` scores the token at position ``logit_positions[i] + 1``.
    """

    tokens: list[int]
    stats: PromptStats
    logits: Tensor | None
    logit_positions: list[int]
