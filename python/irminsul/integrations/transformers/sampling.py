"""Scores of the next token -> the token.

Must not know models or caches.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from irminsul.errors import InvalidParams

__all__ = ["Sampling"]


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen.

    Parameters
    ----------
    temperature : float
        0 takes the most likely token.
    top_k : int
        Consider this many of the most likely tokens; 0 considers all.
    top_p : float
        Consider the most likely tokens that together have this probability, in (0, 1].
    seed : int
        The same seed, prompt index and scores give the same tokens, whatever else is in the batch.

    Raises
    ------
    InvalidParams
        A value is out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise InvalidParams(f"temperature is {self.temperature}; it must be 0 or more")
        if self.top_k < 0:
            raise InvalidParams(f"top_k is {self.top_k}; it must be 0 or more")
        if not 0.0 < self.top_p <= 1.0:
            raise InvalidParams(f"top_p is {self.top_p}; it must lie in (0, 1]")

    def generator(self, index: int) -> torch.Generator:
        """Random numbers for prompt `index` of a call."""
        return torch.Generator().manual_seed((self.seed * 1_000_003 + index) & (2**63 - 1))

    def choose(self, scores: Tensor, generator: torch.Generator) -> int:
        """Choose a token from ``scores`` [vocabulary], float32."""
        if self.temperature == 0.0:
            return int(scores.argmax())
        probabilities = torch.softmax(scores.cpu().float() / self.temperature, dim=-1)
        ordered, ids = probabilities.sort(descending=True)
        before = ordered.cumsum(0) - ordered
        keep = before < self.top_p
        if self.top_k:
            keep[self.top_k :] = False
        drawn = torch.multinomial(ordered * keep, 1, generator=generator)
        return int(ids[drawn])
