"""Short descriptions of long token sequences -> the sequences.

Golden files hold the descriptions, so that they stay small; the Rust tests expand them by the
same rules.
"""

from collections.abc import Iterable, Mapping
from typing import Any

_MASK = (1 << 64) - 1


def splitmix(seed: int, count: int) -> list[int]:
    """Return `count` 64-bit numbers of the SplitMix64 generator."""
    numbers = []
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) & _MASK
        z = (seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
        numbers.append(z ^ (z >> 31))
    return numbers


def expand(parts: Iterable[Mapping[str, Any]]) -> list[int]:
    """Return the parts in a row: repeated `ids`, `count` steps, or random ids `below` a bound.

    `power` > 1 takes the smallest of so many random numbers, which favours low ids as text does.
    """
    tokens: list[int] = []
    for part in parts:
        if "ids" in part:
            tokens += part["ids"] * part["times"]
        elif "step" in part:
            tokens += [part["start"] + i * part["step"] for i in range(part["count"])]
        else:
            power = part["power"]
            numbers = [x % part["below"] for x in splitmix(part["seed"], part["count"] * power)]
            tokens += [min(numbers[i : i + power]) for i in range(0, len(numbers), power)]
    return tokens
