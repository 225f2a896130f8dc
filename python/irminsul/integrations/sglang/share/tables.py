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

    @property
    def pages(self) -> int:
        """Pages that the rows stand in."""
        return -(-(self.first + self.count) // PAGE_SIZE)


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
    def pages(self) -> int:
        """Pages of lenders, each of which is a tile."""
        return sum(piece.pages for piece in self.pieces)

    @property
    def cuts(self) -> int:
        """Tiles beyond one for each page of the borrower."""
        return self.pages - (self.end - self.start) // PAGE_SIZE


@dataclass(frozen=True)
class Entry:
    """What one request borrows.

    Parameters
    ----------
    row : int
        The request's row in the engine's table of slots.
    number : int
        Its entry in the tables, from 1 on.
    borrowed : sequence of Borrowed
        Ascending and disjoint, at least one.
    """

    row: int
    number: int
    borrowed: Sequence[Borrowed]

    @property
    def tiles(self) -> int:
        """Tiles of the positions up to the end of the last run."""
        return self.borrowed[-1].end // PAGE_SIZE + sum(run.cuts for run in self.borrowed)


@dataclass(frozen=True)
class Update:
    """Entries on the device, as `LoanTables.write` puts them in place.

    Parameters
    ----------
    places : Tensor, int64, [tiles]
        Where each tile goes.
    tiles : Tensor, int32, [tiles, 4]
        As `TileTable` has them, but without the pages of own tiles.
    numbers, rows : Tensor, int64, [entries]
        Each entry, and the request that it belongs to.
    bounds : Tensor, int64, [2, entries]
        Tiles of each entry, and the position behind the last borrowed one.
    """

    places: Tensor
    tiles: Tensor
    numbers: Tensor
    rows: Tensor
    bounds: Tensor

    def tensors(self) -> tuple[Tensor, ...]:
        """Return a tensor of each allocation that another stream will read."""
        return (self.places,)


def _parts(entries: Sequence[Entry], capacity: int) -> Iterator[tuple[int, ...]]:
    """Yield what stands in consecutive pages, the borrowers' own and those of each piece.

    Yields
    ------
    tuple
        Pages; first row in the first one; rows; position of the first row; rotation; number of the
        first page among all that are borrowed, negative for own ones; place of the first tile.
    """
    number = 0
    for entry in entries:
        position, place = 0, entry.number * capacity
        for run in entry.borrowed:
            own = run.start - position
            yield own // PAGE_SIZE, 0, own, position, 0, _OWN, place
            position, place = run.start, place + own // PAGE_SIZE
            for piece in run.pieces:
                pages = piece.pages
                yield pages, piece.first, piece.count, position, run.delta, number, place
                position, place, number = position + piece.count, place + pages, number + pages


def numbers_of(entries: Sequence[Entry], capacity: int) -> NDArray[np.int64]:
    """Return all that has to be known of the tiles of `entries`, each with room for `capacity`.

    Returns
    -------
    int64, [4, tiles]
        Place of each tile; which of all borrowed pages it reads, their number when it reads the
        borrower's own; and ``(0, lo | hi << 16, delta, pos0)`` as int32, two of them in one.
    """
    parts = np.array(list(_parts(entries, capacity))).T
    tiles = parts[0]
    first, count, position, delta, source, place = np.repeat(parts[1:], tiles, axis=1)
    page = np.arange(len(place)) - np.repeat(np.cumsum(tiles) - tiles, tiles)
    lo = np.where(page == 0, first, 0)
    hi = np.minimum(PAGE_SIZE, first + count - page * PAGE_SIZE)
    there = np.empty((len(page), 4), np.int32)
    there[:, 0], there[:, 1], there[:, 2] = 0, lo | hi << 16, delta
    there[:, 3] = position + page * PAGE_SIZE + lo - first
    borrowed = tiles[parts[5] != _OWN].sum()
    sources = np.where(source == _OWN, borrowed, source + page)
    return np.concatenate([place + page, sources, there.ravel().view(np.int64)]).reshape(4, -1)


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
        self._bounds = torch.zeros(2, entries + 1, dtype=torch.int32, device=device)
        self._count, self._end = self._bounds
        self._entry_of = torch.zeros(slots.shape[0], dtype=torch.int64, device=device)
        self._index = torch.arange(self.capacity, dtype=torch.int32, device=device)
        self._own = torch.tensor([_OWN * PAGE_SIZE], device=device)

    def prepare(self, entries: Sequence[Entry]) -> Update:
        """Bring `entries`, at least one, to the device: one copy, however many there are."""
        numbers = numbers_of(entries, self.capacity)
        rest = [(e.number, e.row, e.tiles, e.borrowed[-1].end) for e in entries]
        sent = np.concatenate([numbers.ravel(), np.array(rest).T.ravel()])
        there = to_device(torch.from_numpy(sent), self._own.device)
        count, borrowers = numbers.shape[1], len(entries)
        sizes = [count, count, 2 * count, borrowers, borrowers, 2 * borrowers]
        places, source, tiles, own, rows, bounds = torch.split(there, sizes)
        tiles = tiles.view(torch.int32).view(count, 4)
        heads = [p.heads for entry in entries for run in entry.borrowed for p in run.pieces]
        slots = torch.cat([*heads, self._own])[source]
        tiles[:, 0] = slots.div_(PAGE_SIZE, rounding_mode="floor")
        return Update(places, tiles, own, rows, bounds.view(2, borrowers))

    def write(self, update: Update) -> None:
        """Put entries in place on the current stream, behind all work that reads old ones."""
        self._tiles.view(-1, 4).index_copy_(0, update.places, update.tiles)
        self._bounds.index_copy_(1, update.numbers, update.bounds.to(torch.int32))
        self._entry_of.index_copy_(0, update.rows, update.numbers)

    def forget(self, row: int) -> None:
        """Say, likewise, that the request at `row` borrows nothing any more."""
        self._entry_of[row] = 0

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
