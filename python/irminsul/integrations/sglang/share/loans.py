"""What one request borrows -> which of its positions are its own.

Positions and records only: must not know the tree, the pool or how loans come about.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from irminsul.integrations.sglang.share.tables import Borrowed, Update

Interval = tuple[int, int]


@dataclass
class Loan:
    """What one running request borrows.

    Parameters
    ----------
    row : int
        The request's row in ``req_to_token``.
    number : int
        Its entry of the tables.
    borrowed : list of Borrowed
        Ascending.
    nodes : list
        Locked once for each time they are listed.
    kept : list of (start, end)
        Own positions that the tree has taken over.
    """

    row: int
    number: int
    borrowed: list[Borrowed] = field(default_factory=list)
    nodes: list[Any] = field(default_factory=list)
    kept: list[Interval] = field(default_factory=list)

    @property
    def first(self) -> int:
        """First borrowed position: the tree may know the request up to here."""
        return self.borrowed[0].start

    @property
    def tokens(self) -> int:
        """Number of borrowed positions."""
        return sum(run.end - run.start for run in self.borrowed)

    def own(self, start: int, end: int) -> list[Interval]:
        """Return the parts of ``[start, end)`` that the request has slots of its own for."""
        away = [(run.start, run.end) for run in self.borrowed] + self.kept
        parts, position = [], start
        for low, high in sorted(away):
            if high <= position:
                continue
            if low >= end:
                break
            if low > position:
                parts.append((position, low))
            position = high
        if position < end:
            parts.append((position, end))
        return parts


@dataclass(frozen=True)
class Part:
    """What one request of a batch will borrow beyond what it does already.

    Parameters
    ----------
    row, number
        See `Loan`.
    runs : tuple of Borrowed
        The new ones.
    nodes : tuple
        Tree nodes that hold their rows.
    spare : list of Tensor, int64
        A slot of each page that SGLang gave to the borrowed positions.
    """

    row: int
    number: int
    runs: tuple[Borrowed, ...]
    nodes: tuple[Any, ...]
    spare: list[Tensor]


@dataclass(frozen=True)
class Lent:
    """What a batch will borrow.

    Parameters
    ----------
    parts : list of Part
        Of each request that borrows.
    update : Update
        Their tiles, old and new.
    spare : Tensor, int64, [pages]
        A slot of each page that they will not need.
    """

    parts: list[Part]
    update: Update
    spare: Tensor
