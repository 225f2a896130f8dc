"""Pages that running requests borrow -> the key tiles of every row, also inside CUDA graphs.

Plain tensors in and out: must not import SGLang, nor know who lends or how long.

A request that borrows has an *entry*: the tiles of all its positions up to the end of what it last
borrowed, made once when it is admitted and kept in one fixed buffer. Behind that end its own pages
follow, one tile each. Own pages are read from the engine's table in every step, those between
borrowed ones too: the engine exchanges them when it finds the same text in its tree. Requests
that borrow nothing have entry 0, which holds no tile, so one form serves all rows of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from irminsul.attention import PAGE_SIZE, TileTable
from irminsul.integrations.sglang.streams import to_device
from irminsul.rotation import RopeTable

MOST_CUTS = 256
"""Most tiles of a request beyond one a page: each run borrowed at an offset costs one."""

_OWN = -1  # in place of a page that the engine's table names


@dataclass(frozen=True)
class Piece:
    """Consecutive rows in pages of one lender.

    Parameters
    ----------
    heads : Tensor, integer, [n]
        A slot of each page, in order, on the pool's device.
    first : int
        First row inside the first page.
    count : int
        Rows; they end inside the last page.
    """

    heads: Tensor
    first: int
    count: int


@dataclass(frozen=True)
class Borrowed:
    """Positions ``[start, end)`` of a request whose rows stand in pages of others.

    Parameters
    ----------
    start, end : int
        Multiples of `PAGE_SIZE`.
    delta : int
        Rotation that the rows still need, in positions.
    pieces : tuple of Piece
        The rows in order.
    """

    start: int
    end: int
    delta: int
    pieces: tuple[Piece, ...]

    @property
    def cuts(self) -> int:
        """Tiles beyond one for each page of the borrower."""
        tiles = sum(len(piece.heads) for piece in self.pieces)
        return tiles - (self.end - self.start) // PAGE_SIZE


def columns_of(borrowed: Sequence[Borrowed]) -> NDArray[np.int32]:
    """Return the tiles of positions ``[0, end of the last)``, with numbers in place of pages.

    Parameters
    ----------
    borrowed
        Ascending and disjoint, at least one.

    Returns
    -------
    int32, [tiles, 4]
        ``(number, lo | hi << 16, delta, pos0)``. Numbers count the pieces' pages in order; the
        borrower's own have `_OWN`.
    """
    number, parts, position = 0, [], 0
    for run in borrowed:
        own = np.arange(position, run.start, PAGE_SIZE)
        parts.append(_tiles(0 * own + _OWN, 0 * own, 0 * own + PAGE_SIZE, 0, own))
        for tiles in _borrowed_tiles(run, number):
            parts.append(tiles)
            number += len(tiles)
        position = run.end
    return np.concatenate(parts)


def _borrowed_tiles(run: Borrowed, number: int) -> Iterator[NDArray[np.int32]]:
    position = run.start
    for piece in run.pieces:
        page = np.arange(len(piece.heads))
        lo = np.where(page == 0, piece.first, 0)
        hi = np.minimum(PAGE_SIZE, piece.first + piece.count - page * PAGE_SIZE)
        pos0 = position + page * PAGE_SIZE + lo - piece.first
        yield _tiles(number + page, lo, hi, run.delta, pos0)
        number += len(page)
        position += piece.count


def _tiles(
    page: NDArray[np.int64],
    lo: NDArray[np.int64],
    hi: NDArray[np.int64],
    delta: int,
    pos0: NDArray[np.int64],
) -> NDArray[np.int32]:
    return np.stack([page, lo | hi << 16, np.full_like(page, delta), pos0], axis=1).astype(np.int32)


@dataclass(frozen=True)
class Entry:
    """What `LoanTables.write` puts in place: tiles, and which request they belong to.

    Parameters
    ----------
    row : int
        The request's row in the engine's table of slots.
    number : int
        Its entry; 0 when it borrows nothing any more.
    end : int
        Position behind the last borrowed one.
    tiles : Tensor, int32, [tiles, 4]
        As `TileTable` has them, but without the pages of own tiles.
    """

    row: int
    number: int
    end: int = 0
    tiles: Tensor | None = None

    @classmethod
    def of(cls, row: int, number: int, borrowed: Sequence[Borrowed], device: torch.device) -> Entry:
        """Make the entry of a request that borrows `borrowed`."""
        tiles = to_device(torch.from_numpy(columns_of(borrowed)), device)
        heads = torch.cat([piece.heads for run in borrowed for piece in run.pieces])
        pages = (heads // PAGE_SIZE).to(torch.int32)
        numbers = tiles[:, 0].long()
        tiles[:, 0] = torch.where(numbers == _OWN, _OWN, pages[numbers])
        return cls(row, number, borrowed[-1].end, tiles)

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors that another stream will read."""
        return () if self.tiles is None else (self.tiles,)


class LoanTables:
    """Tiles of all requests that borrow, in buffers that never move.

    Parameters
    ----------
    entries : int
        Most requests that may borrow at the same time.
    slots : Tensor, int32, [requests, width]
        The engine's table: the pool row of each position of each request.
    rope : RopeTable
        The model's rotation, on the device.

    Notes
    -----
    ``in_use`` may be set to False while a batch runs in which nobody borrows. A CUDA graph must be
    recorded with True.
    """

    def __init__(self, entries: int, slots: Tensor, rope: RopeTable) -> None:
        device = slots.device
        self.entries = entries
        self.in_use = True
        self.rope = rope
        self.capacity = -(-slots.shape[1] // PAGE_SIZE) + MOST_CUTS
        shape = (entries + 1, self.capacity, 4)
        self._tiles = torch.zeros(shape, dtype=torch.int32, device=device)
        self._count = torch.zeros(entries + 1, dtype=torch.int32, device=device)
        self._end = torch.zeros(entries + 1, dtype=torch.int32, device=device)
        self._entry_of = torch.zeros(slots.shape[0], dtype=torch.int64, device=device)
        self._index = torch.arange(self.capacity, dtype=torch.int32, device=device)

    def write(self, entry: Entry) -> None:
        """Put `entry` in place on the current stream, behind all work that reads the old one."""
        if entry.tiles is not None:
            self._tiles[entry.number, : len(entry.tiles)] = entry.tiles
            self._count[entry.number] = len(entry.tiles)
            self._end[entry.number] = entry.end
        self._entry_of[entry.row] = entry.number

    def compose(self, slots: Tensor, sequences: Tensor, lengths: Tensor) -> TileTable:
        """Return the tiles of the first `lengths` positions of each sequence.

        Nothing here waits for the device or depends on values: a CUDA graph may hold it.

        Parameters
        ----------
        slots : Tensor, int32, [requests, width]
            The engine's table, or its first columns.
        sequences : Tensor, integer, [rows]
            Row of `slots` of each row; several may be the same.
        lengths : Tensor, int32, [rows]
            Keys of each row.
        """
        most = min(self.capacity, -(-slots.shape[1] // PAGE_SIZE) + MOST_CUTS)
        if slots.is_cuda:
            from irminsul.integrations.sglang.share.kernels import loan_tiles

            stored = self._tiles, self._count, self._end
            return loan_tiles(slots, sequences, lengths, self._entry_of, stored, most)
        return self.compose_readably(slots, sequences, lengths, most)

    def compose_readably(
        self, slots: Tensor, sequences: Tensor, lengths: Tensor, most: int
    ) -> TileTable:
        """Do the work of `compose`, with room for `most` tiles a row."""
        width = slots.shape[1]
        index = self._index[:most]
        entry = self._entry_of[sequences]
        stored = self._tiles[entry, :most]
        ahead = index - self._count[entry, None]
        own, place = ahead >= 0, self._end[entry, None] + ahead * PAGE_SIZE
        pos0 = torch.where(own, place, stored[..., 3])
        page = slots[sequences[:, None], pos0.clamp(0, width - 1).long()] // PAGE_SIZE
        lo = torch.where(own, 0, stored[..., 1] & 0xFFFF)
        full = torch.where(own, PAGE_SIZE, stored[..., 1] >> 16)
        hi = torch.minimum(full, lo + (lengths[:, None] - pos0).clamp(min=0))
        delta = torch.where(own, 0, stored[..., 2])
        page = torch.where(own | (stored[..., 0] == _OWN), page, stored[..., 0])
        tiles = torch.stack([page, lo | hi << 16, delta, pos0], dim=2).to(torch.int32)
        # Positions ascend, so those below the length come first.
        count = (pos0 < lengths[:, None]).sum(1, dtype=torch.int32)
        start = torch.arange(0, len(count) * most, most, dtype=torch.int32, device=slots.device)
        return TileTable(tiles.flatten(0, 1), start, count)
