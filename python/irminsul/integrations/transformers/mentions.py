"""Prompt ids and spans -> the spans without rows whose earlier mentions have changed.

Must not know tensors, models or where rows lie; `irminsul.mentions` says which rows those are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from irminsul import mentions
from irminsul.integrations.transformers.spans import Span
from irminsul.mentions import Origin

__all__ = ["new_mentions", "relink", "without"]


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


def new_mentions(
    tokens: npt.NDArray[np.uint32], prefix: Sequence[Span], spans: Sequence[Span]
) -> npt.NDArray[np.int64]:
    """Positions in `spans` whose token has an earlier mention that its row has not seen.

    A row has seen the rows before it in the kept sequence that it comes from, if it was computed
    over exact context there, and within its own span in any case. The rarest come first.
    """
    origins, donors = [], []
    for number, span in enumerate(itertools.chain(prefix, spans)):
        at = span.target
        for piece in span.pieces:
            origins.append(Origin(at, at + piece.length, piece.start, number >= len(prefix)))
            donors.append((piece.sequence, number, span.depth <= 1))
            at += piece.length
    sequence, span_of, exact = np.array(donors, np.int64).reshape(-1, 3).T
    known = (exact[:, None] != 0) | (span_of[:, None] == span_of)
    return mentions.new_mentions(tokens, origins, known & (sequence[:, None] == sequence))


def without(spans: Iterable[Span], ranges: Sequence[tuple[int, int]]) -> list[Span]:
    """Cut prompt positions out of spans; `ranges` ascend."""
    spans = list(spans)
    left = mentions.remaining([(span.target, span.end) for span in spans], ranges)
    parts = [span.cut(*part) for span, kept in zip(spans, left, strict=True) for part in kept]
    return [part for part in parts if part is not None]
