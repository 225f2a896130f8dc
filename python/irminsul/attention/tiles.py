"""Page tables and reuse plans -> tile tables, the key lists that `mla_attention` reads.

Knows nothing of attention arithmetic or of any engine; the readable form of the device builder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from irminsul.errors import InvalidParams
from irminsul.planning import Piece, Reuse, ReusePlan

PAGE_SIZE = 64
"""Token slots of one physical page of the latent cache."""


@dataclass(frozen=True)
class TileTable:
    """Keys of every row of a batch, as tiles of at most one page each.

    A tile ``{page, lo, hi, delta, pos0}`` stands for the token slots ``[lo, hi)`` of physical page
    ``page``. Slot ``lo + i`` holds the key of logical position ``pos0 + i`` of its row, and its
    ``k_r`` still has to be rotated by ``delta`` positions. Tiles of one row stand in ascending
    order of ``pos0``; rows may lie anywhere in `tiles`, with gaps, and may share tiles.

    Parameters
    ----------
    tiles : Tensor, int32, [num_tiles, 4]
        ``(page, lo | hi << 16, delta, pos0)``, the memory layout of ``IrmMlaTile`` in the C ABI.
    start, count : Tensor, int32, [num_rows]
        Row ``r`` owns ``tiles[start[r] : start[r] + count[r]]``.
    """

    tiles: Tensor
    start: Tensor
    count: Tensor

    @classmethod
    def room(cls, rows: int, capacity: int, device: torch.device) -> TileTable:
        """Return a table, yet to be written, whose rows each have room for `capacity` tiles."""
        return cls(
            torch.empty(rows * capacity, 4, dtype=torch.int32, device=device),
            torch.empty(rows, dtype=torch.int32, device=device),
            torch.empty(rows, dtype=torch.int32, device=device),
        )

    @classmethod
    def from_columns(
        cls, page: Tensor, lo: Tensor, hi: Tensor, delta: Tensor, pos0: Tensor, count: Tensor
    ) -> TileTable:
        """Pack five columns of ``[num_tiles]`` integers, rows laid out one after the other."""
        bounds = (lo.long() | (hi.long() << 16)).to(torch.int32)
        tiles = torch.stack([page.int(), bounds, delta.int(), pos0.int()], dim=1).contiguous()
        lengths = count.int()
        start = torch.zeros_like(lengths)
        start[1:] = lengths.cumsum(0, dtype=torch.int32)[:-1]
        return cls(tiles, start, lengths)

    @property
    def page(self) -> Tensor:
        """Physical page of each tile, int32, [num_tiles]."""
        return self.tiles[:, 0]

    @property
    def lo(self) -> Tensor:
        """First slot of each tile inside its page, int32, [num_tiles]."""
        return self.tiles[:, 1] & 0xFFFF

    @property
    def hi(self) -> Tensor:
        """Slot after the last one of each tile inside its page, int32, [num_tiles]."""
        return self.tiles[:, 1] >> 16

    @property
    def delta(self) -> Tensor:
        """Rotation still to be applied to each tile's ``k_r``, in positions, int32, [num_tiles]."""
        return self.tiles[:, 2]

    @property
    def pos0(self) -> Tensor:
        """Logical position of slot ``lo`` of each tile, int32, [num_tiles]."""
        return self.tiles[:, 3]

    def to(self, device: torch.device | str) -> TileTable:
        """Copy the table to another device."""
        return TileTable(self.tiles.to(device), self.start.to(device), self.count.to(device))


@dataclass(frozen=True)
class KeySpan:
    """A run of one row's keys with one rotation.

    Parameters
    ----------
    slots : Tensor, integer, [length]
        Physical token slots, ``page * 64 + offset``, in order of position.
    position : int
        Logical position of the first slot.
    delta : int
        Rotation still to be applied to ``k_r``, in positions.
    """

    slots: Tensor
    position: int
    delta: int = 0


def tiles_from_pages(page_table: Tensor, key_lens: Tensor) -> TileTable:
    """Build the table of plain paged sequences: whole pages, no rotation.

    Parameters
    ----------
    page_table : Tensor, integer, [num_rows, max_pages]
        Physical pages of each row in order; entries past the row's length are not read.
    key_lens : Tensor, integer, [num_rows]
        Keys of each row; 0 is allowed.

    Returns
    -------
    TileTable
        ``ceil(key_len / 64)`` tiles a row; only a row's last tile may be cut.

    Raises
    ------
    InvalidParams
        A row has more keys than its pages hold.
    """
    lens = key_lens.long().cpu()
    if lens.numel() and int(lens.max()) > page_table.shape[1] * PAGE_SIZE:
        raise InvalidParams(
            f"a row has {int(lens.max())} keys, but {page_table.shape[1]} pages of "
            f"{PAGE_SIZE} hold at most {page_table.shape[1] * PAGE_SIZE}"
        )
    count = (lens + PAGE_SIZE - 1) // PAGE_SIZE
    row = torch.repeat_interleave(torch.arange(len(lens)), count)
    index = torch.arange(len(row)) - (count.cumsum(0) - count)[row]
    pos0 = index * PAGE_SIZE
    zero = torch.zeros_like(pos0)
    page = page_table.cpu().long()[row, index]
    hi = torch.minimum(lens[row] - pos0, torch.tensor(PAGE_SIZE))
    return TileTable.from_columns(page, zero, hi, zero, pos0, count).to(page_table.device)


def tiles_from_spans(rows: Sequence[Sequence[KeySpan]]) -> TileTable:
    """Cut every row's spans into tiles: the longest runs of neighbouring slots inside one page.

    Parameters
    ----------
    rows : sequence of sequences of KeySpan
        Spans of one row in ascending order of position, not overlapping.

    Raises
    ------
    InvalidParams
        Spans of a row overlap or are out of order.
    """
    columns: list[tuple[int, int, int, int, int]] = []
    counts = []
    for row, spans in enumerate(rows):
        before = len(columns)
        end = 0
        for span in spans:
            if span.position < end:
                raise InvalidParams(f"row {row}: span at {span.position} starts before {end}")
            end = span.position + len(span.slots)
            columns.extend(_cut(span))
        counts.append(len(columns) - before)
    table = torch.tensor(columns, dtype=torch.int64).reshape(-1, 5)
    page, lo, hi, delta, pos0 = table.unbind(1)
    count = torch.tensor(counts, dtype=torch.int32)
    return TileTable.from_columns(page, lo, hi, delta, pos0, count)


def _cut(span: KeySpan) -> list[tuple[int, int, int, int, int]]:
    """Tiles of one span as (page, lo, hi, delta, pos0)."""
    slots = span.slots.tolist()
    cuts = [0] if slots else []
    cuts += [
        i for i in range(1, len(slots)) if slots[i] != slots[i - 1] + 1 or not slots[i] % PAGE_SIZE
    ]
    tiles = []
    for first, last in zip(cuts, [*cuts[1:], len(slots)], strict=True):
        page, lo = divmod(slots[first], PAGE_SIZE)
        tiles.append((page, lo, lo + last - first, span.delta, span.position + first))
    return tiles


def spans_from_plan(
    plan: ReusePlan,
    prefix_slots: Tensor,
    own_slots: Tensor,
    piece_slots: Callable[[Piece], Tensor],
) -> list[KeySpan]:
    """Key spans of one prompt: its exact prefix, borrowed spans in place, its own new rows.

    Parameters
    ----------
    plan : ReusePlan
        Segments that tile ``[len(prefix_slots), n)``.
    prefix_slots : Tensor, integer, [prefix_len]
        Slots of the exact prefix, positions 0 to ``prefix_len``.
    own_slots : Tensor, integer, [plan.computed_tokens]
        Slots the engine gave to the computed positions, in order of position.
    piece_slots : callable
        The slots a piece's rows stand in now, ``[piece.length]``; the rows are only read.

    Returns
    -------
    list of KeySpan
        In ascending order of position, for `tiles_from_spans`.
    """
    spans = [KeySpan(prefix_slots, 0)] if len(prefix_slots) else []
    used = 0
    for segment in plan.segments:
        if isinstance(segment, Reuse):
            slots = torch.cat([piece_slots(piece) for piece in segment.pieces])
            spans.append(KeySpan(slots, segment.target, segment.delta))
        else:
            length = segment.end - segment.start
            spans.append(KeySpan(own_slots[used : used + length], segment.start))
            used += length
    return spans
