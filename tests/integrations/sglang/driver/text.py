"""A seed -> token ids that look like prompts: fresh text, and documents that come back."""

from __future__ import annotations

import random

VOCABULARY = 512


class Writer:
    """Draws token ids; the first two ids of the vocabulary are special and left out."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def text(self, length: int) -> list[int]:
        return [self._random.randrange(2, VOCABULARY) for _ in range(length)]

    def choice(self, items: list[list[int]]) -> list[int]:
        return self._random.choice(items)

    def number(self, low: int, high: int) -> int:
        return self._random.randint(low, high)
