"""Chunks -> one request to the client process, and its codes -> answers, chunks and counts.

Must not know threads or processes. Mooncake's codes are read here and nowhere else.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from irminsul.tiers.base import Counts, Receive
from irminsul.tiers.keys import ChunkRef
from irminsul.tiers.mooncake.meter import Meter
from irminsul.tiers.ticket import Ticket
from irminsul.tiers.value import ChunkRows, Rejected, decode, encode_into, encoded_bytes

__all__ = ["Call", "Exists", "Get", "Put", "Remove"]

_NOT_THERE = -704
# The value is larger than the piece that it should fit exactly, or is being written still.
_INVALID = -600
_NO_SPACE = -200

# No chunk of 64 tokens of MLA rows is smaller, and no signpost as large.
_TELLING_BYTES = 64 << 10

_numbers = itertools.count(1)

Views = Sequence[NDArray[np.uint8]]


class Call(ABC):
    """One batch of keys on its way.

    Parameters
    ----------
    refs : sequence of ChunkRef
        One per key.
    ticket : Ticket of bool, optional
        Who waits.
    first : int
        Index of the first answer in the ticket.
    counts : Counts
        What happened.
    """

    kind: ClassVar[str]
    queue: ClassVar[str]

    def __init__(
        self, refs: Sequence[ChunkRef], ticket: Ticket[bool] | None, first: int, counts: Counts
    ) -> None:
        self.number = next(_numbers)
        self.keys = [ref.key.hex() for ref in refs]
        self.sizes: list[int] = []
        self.offsets: list[int] = []
        self.held_bytes = 0
        self.sent_at = 0.0
        self.hangs_at = math.inf
        self.lost = False
        self._refs = refs
        self._ticket = ticket
        self._first = first
        self._counts = counts

    @property
    def abandoned(self) -> bool:
        """True when nobody waits any more: cancelled or past the deadline."""
        return self._ticket is not None and self._ticket.done

    def request(self) -> dict[str, Any]:
        """Return what the client process is told."""
        return {
            "id": self.number,
            "kind": self.kind,
            "keys": self.keys,
            "offsets": self.offsets,
            "sizes": self.sizes,
        }

    def fill(self, views: Views) -> None:
        """Write what is sent to the pieces of shared memory; nothing by default."""
        del views

    def settle(self, codes: list[int] | None, views: Views) -> None:
        """Take the codes, one per key; None when the call failed as a whole."""
        if codes is None or len(codes) != len(self.keys):
            self._counts.add(f"{self.kind}_failed", len(self.keys))
            codes = None
        for index in range(len(self.keys)):
            answer = codes is not None and self._answer(index, codes[index], views)
            if self._ticket is not None:
                late = not self._ticket.settle(self._first + index, answer)
                if late and answer and self.kind == "get":
                    self._counts.add("late")

    @abstractmethod
    def _answer(self, index: int, code: int, views: Views) -> bool: ...


class Exists(Call):
    """Ask whether values are there."""

    kind = "exists"
    queue = "ask"

    def _answer(self, index: int, code: int, views: Views) -> bool:
        if code < 0:
            self._counts.add("exists_failed")
        return code == 1


class Remove(Call):
    """Take values away that failed a check, so that good ones can be written."""

    kind = "remove"
    queue = "ask"

    def _answer(self, index: int, code: int, views: Views) -> bool:
        self._counts.add("removed" if code == 0 else "remove_failed")
        return code == 0


class Get(Call):
    """Fetch values and check them.

    Parameters
    ----------
    receive : callable
        Takes each chunk that passes.
    reject : callable
        Takes the reference of each value that does not.
    meter : Meter
        Is told when a call for large values is sent, and what it has brought.
    """

    kind = "get"
    queue = "get"

    def __init__(
        self,
        refs: Sequence[ChunkRef],
        ticket: Ticket[bool],
        first: int,
        counts: Counts,
        receive: Receive,
        reject: Callable[[ChunkRef], object],
        meter: Meter,
    ) -> None:
        super().__init__(refs, ticket, first, counts)
        self.sizes = [encoded_bytes(ref) for ref in refs]
        self._receive = receive
        self._reject = reject
        self._meter = meter
        # Many small values say how long a question takes, however many bytes they add up to.
        self._telling = sum(self.sizes) >= _TELLING_BYTES * len(self.sizes)
        self._metered = False

    def fill(self, views: Views) -> None:
        """Note that it is sent."""
        if self._telling:
            self._meter.begin()
            self._metered = True

    def settle(self, codes: list[int] | None, views: Views) -> None:
        """Check and hand over what came."""
        arrived = sum(code for code in codes or () if code > 0)
        if arrived:
            self._counts.add("bytes_in", arrived)
        if self._metered:
            self._meter.end(arrived)
        super().settle(codes, views)

    def _answer(self, index: int, code: int, views: Views) -> bool:
        ref = self._refs[index]
        if code == _NOT_THERE:
            self._counts.add("misses")
            return False
        if code < 0 and code != _INVALID:
            self._counts.add("get_failed")
            return False
        try:
            if code != self.sizes[index]:
                raise Rejected("size", f"{code} bytes, {self.sizes[index]} expected")
            chunk = decode(ref, views[index])
        except Rejected as error:
            self._counts.add(f"rejected_{error.reason}")
            self._reject(ref)
            return False
        self._counts.add("hits")
        if self._ticket is None or not self._ticket.cancelled:
            self._receive(chunk)
        return True


class Put(Call):
    """Store values."""

    kind = "put"
    queue = "put"

    def __init__(
        self, chunks: Sequence[ChunkRows], ticket: Ticket[bool], first: int, counts: Counts
    ) -> None:
        super().__init__([chunk.ref for chunk in chunks], ticket, first, counts)
        self.sizes = [encoded_bytes(chunk.ref) for chunk in chunks]
        self.held_bytes = sum(chunk.rows.nbytes for chunk in chunks)
        self._chunks: Sequence[ChunkRows] = chunks

    def fill(self, views: Views) -> None:
        """Encode every chunk; its rows are not needed after that."""
        for chunk, view in zip(self._chunks, views, strict=True):
            encode_into(chunk, view)
        self._chunks = ()

    def _answer(self, index: int, code: int, views: Views) -> bool:
        if code == 0:
            self._counts.add("stored")
            self._counts.add("bytes_out", self.sizes[index])
        else:
            self._counts.add("no_space" if code == _NO_SPACE else "put_failed")
        return code == 0
