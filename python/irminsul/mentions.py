"""Prompt ids, and where taken-over rows were computed -> rows whose earlier mentions have changed.

Must not know tensors, models, engines or where rows lie.

A model that follows links while it reads looks up where a token stood before: a name that a fact
leads to is found in the fact that tells of it. A row computed before that fact came lacks it. Ids
alone show which rows may lack something: those of a token that now has an earlier mention which did
not precede it in the sequence that the row was computed in. Common tokens have always been
mentioned before; the rarest come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from irminsul.errors import InvalidParams

__all__ = ["MOST", "Origin", "check_share", "is_share", "new_mentions", "remaining"]

MOST = 8
"""A token that a prompt holds more often is no name of anything."""

# Ids below it are counted in an array of as many places.
_DENSE = 1 << 21

Positions = npt.NDArray[np.int64]


class Origin(NamedTuple):
    """Positions ``[start, end)`` of a prompt whose rows were computed one behind the other.

    ``row`` is where the first of them stood then. Rows that are not ``moved`` stay what they are.
    """

    start: int
    end: int
    row: int
    moved: bool = True


def is_share(share: object) -> bool:
    """Return whether `share` is a number from 0 to 1."""
    return isinstance(share, (int, float)) and not isinstance(share, bool) and 0 <= share <= 1


def check_share(share: float) -> float:
    """Return `share`, or raise InvalidParams unless it is a number from 0 to 1."""
    if not is_share(share):
        raise InvalidParams(f"relink is {share!r}; it must be a share from 0 to 1")
    return share


def new_mentions(
    tokens: npt.NDArray[np.integer],
    origins: Sequence[Origin],
    saw: npt.NDArray[np.bool_],
) -> Positions:
    """Positions of moved rows whose token has an earlier mention that the row has not seen.

    Parameters
    ----------
    tokens : int, [n]
        The prompt; ids are not negative.
    origins : sequence of Origin
        Ascending and disjoint; positions between them are computed.
    saw : bool, [origins, origins]
        ``saw[i, j]``: what origin i's rows were computed over held the rows of origin j that stood
        before them.

    Returns
    -------
    int64, [found]
        Tokens that the prompt holds more than `MOST` times are left out. The rarest come first,
        those that are as rare as each other in the prompt's order.

    Notes
    -----
    Most ids of a long text are too common or unique, so only the others are sorted.
    """
    if len(tokens) and tokens.max() >= _DENSE:
        tokens = np.unique(tokens, return_inverse=True)[1]
    often = np.bincount(tokens)[tokens] if len(tokens) else np.empty(0, np.int64)
    rare = np.flatnonzero((often > 1) & (often <= MOST))
    # By id and then by position: mentions of one token lie side by side.
    place = np.sort((tokens[rare].astype(np.int64) << 32) | rare) & 0xFFFF_FFFF
    of = _origin_of(len(tokens), origins)[place]
    # A position that is computed has the last number: it saw nothing, and nothing saw it.
    start, _, first, moved = np.array([*origins, (0, 0, 0, 0)], np.int64).T
    seen = np.zeros((len(start), len(start)), np.bool_)
    seen[:-1, :-1] = saw
    row = place + (first - start)[of]
    later, earlier = _pairs(tokens[place], moved[of] != 0)
    known = seen.reshape(-1)[of[later] * len(seen) + of[earlier]] & (row[earlier] < row[later])
    gained = np.zeros(len(place), np.bool_)
    gained[later[~known]] = True
    found = np.sort(place[gained])
    return found[np.argsort(often[found].astype(np.uint8), kind="stable")]


def remaining(
    bounds: Iterable[tuple[int, int]], ranges: Sequence[tuple[int, int]]
) -> list[list[tuple[int, int]]]:
    """Return what is left of each of `bounds` when `ranges` are cut out; both ascend."""
    left: list[list[tuple[int, int]]] = []
    first = 0
    for start, end in bounds:
        parts: list[tuple[int, int]] = []
        at = start
        while first < len(ranges) and ranges[first][0] < end:
            low, high = ranges[first]
            if low > at:
                parts.append((at, low))
            at = max(at, high)
            if high > end:
                break
            first += 1
        if at < end:
            parts.append((at, end))
        left.append(parts)
    return left


def _pairs(
    tokens: npt.NDArray[np.integer], wanted: npt.NDArray[np.bool_]
) -> tuple[Positions, Positions]:
    """Return indices of all (later, earlier) mentions of a token; equal ones lie side by side."""
    at = np.arange(len(tokens))
    begins = np.ones(len(tokens), np.bool_)
    begins[1:] = tokens[1:] != tokens[:-1]
    before = np.where(wanted, at - np.maximum.accumulate(np.where(begins, at, 0)), 0)
    later = np.repeat(at, before)
    firsts = np.repeat(np.cumsum(before) - before, before)
    return later, later - 1 - (np.arange(len(later)) - firsts)


def _origin_of(length: int, origins: Sequence[Origin]) -> Positions:
    """Return each position's number among origins; ``len(origins)`` where it is computed."""
    numbers, lengths, at = [], [], 0
    for number, origin in enumerate(origins):
        numbers += [len(origins), number]
        lengths += [origin.start - at, origin.end - origin.start]
        at = origin.end
    return np.repeat([*numbers, len(origins)], [*lengths, length - at])
