"""Prompt ids and spans -> rows whose earlier mentions have changed, which are computed again.

Must not know tensors, models or where rows lie.

A model that follows links while it reads looks up where a token stood before: a name that a fact
leads to is found in the fact that tells of it. A row computed before that fact came lacks it. Ids
alone show which rows may lack something: those of a token that now has an earlier mention which did
not precede it in the sequence that the row was computed in. Common tokens have always been
mentioned before; the rarest come first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from irminsul.errors import InvalidParams
from irminsul.integrations.transformers.spans import Span

__all__ = ["MOST", "check_share", "new_mentions", "relink", "without"]

MOST = 8
"""A token that a prompt holds more often is no name of anything."""

Positions = npt.NDArray[np.int64]


def relink(
    tokens: npt.NDArray[np.uint32], prefix: Sequence[Span], spans: Sequence[Span], share: float
) -> list[Span]:
    """Cut from spans the rows that may lack what earlier text says now.

    Parameters
    ----------
    tokens : uint32, [n]
        The prompt.
    prefix : sequence of Span
        The exact prefix, which stays as it is.
    spans : sequence of Span
        What is taken over behind it.
    share : float
        Most that is cut, as a part of the spans' rows, from 0 to 1.

    Returns
    -------
    list of Span
        The rest of `spans`.
    """
    count = round(share * sum(span.length for span in spans))
    if count == 0:
        return list(spans)
    chosen = np.sort(new_mentions(tokens, prefix, spans)[:count]).tolist()
    return without(spans, [(position, position + 1) for position in chosen])


def check_share(share: float) -> float:
    """Return `share`, or raise InvalidParams unless it lies between 0 and 1."""
    if not 0 <= share <= 1:
        raise InvalidParams(f"relink is {share}; it must be a share from 0 to 1")
    return share


def new_mentions(
    tokens: npt.NDArray[np.uint32], prefix: Sequence[Span], spans: Sequence[Span]
) -> Positions:
    """Positions in `spans` whose token has an earlier mention that its row has not seen.

    A row has seen the rows before it in the kept sequence that it comes from, if it was computed
    over exact context there, and within its own span in any case. Tokens that the prompt holds
    more than `MOST` times are left out; the rarest come first.
    """
    donor, row, exact, number = _origins(len(tokens), prefix, spans)
    order = np.argsort(tokens, kind="stable")
    ranked = tokens[order]
    _, often = np.unique(ranked, return_counts=True)
    count = np.repeat(often, often)
    gained = np.zeros(len(tokens), dtype=np.bool_)
    for back in range(1, min(MOST, len(tokens))):
        later, earlier = order[back:], order[:-back]
        same = (ranked[back:] == ranked[:-back]) & (count[back:] <= MOST)
        seen = (donor[later] == donor[earlier]) & (row[earlier] < row[later])
        seen &= exact[later] | (number[later] == number[earlier])
        gained[later[same & ~seen]] = True
    behind = number >= len(prefix)
    often_at = np.empty(len(tokens), dtype=np.int64)
    often_at[order] = count
    found = np.flatnonzero(gained & behind)
    return found[np.argsort(often_at[found], kind="stable")]


def _origins(
    length: int, prefix: Sequence[Span], spans: Sequence[Span]
) -> tuple[Positions, Positions, npt.NDArray[np.bool_], Positions]:
    """Kept sequence and row of each position, whether that was exact, and its span's number.

    A position that is computed has -1 for all numbers.
    """
    donor, row, number = (np.full(length, -1, dtype=np.int64) for _ in range(3))
    exact = np.zeros(length, dtype=np.bool_)
    for index, span in enumerate(itertools.chain(prefix, spans)):
        at = span.target
        for piece in span.pieces:
            end = at + piece.length
            donor[at:end] = piece.sequence
            row[at:end] = np.arange(piece.start, piece.start + piece.length)
            at = end
        exact[span.target : span.end] = span.depth <= 1
        number[span.target : span.end] = index
    return donor, row, exact, number


def without(spans: Iterable[Span], ranges: Sequence[tuple[int, int]]) -> list[Span]:
    """Cut prompt positions out of spans; `ranges` ascend."""
    left: list[Span] = []
    waiting = list(ranges)
    for span in spans:
        at = span.target
        while waiting and waiting[0][0] < span.end:
            start, end = waiting[0]
            if (part := span.cut(at, start)) is not None:
                left.append(part)
            at = max(at, end)
            if end > span.end:
                break
            waiting.pop(0)
        if (part := span.cut(at, span.end)) is not None:
            left.append(part)
    return left
