"""Tiles of requests that borrow, and SGLang's slot table -> the tile table of one batch.

Triton, one launch, for use inside CUDA graphs; `LoanTables.compose_readably` is its specification.
Must wait for nothing, and depend on values in no shape.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from irminsul.attention import PAGE_SIZE, TileTable

_BLOCK = 256
_PAGE = tl.constexpr(PAGE_SIZE)


# Room for tiles changes with a batch's longest prompt; whether 16 divides it is worth no compile.
@triton.jit(do_not_specialize=["capacity"])  # type: ignore[untyped-decorator]
def _irminsul_loan_tiles(  # type: ignore[no-untyped-def]
    slots,
    slots_stride,
    sequences,
    lengths,
    entry_of,
    stored,
    stored_count,
    stored_end,
    stored_capacity,
    tiles,
    start,
    count,
    capacity,
    BLOCK: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0)
    tile = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keys = tl.load(lengths + row).to(tl.int32)
    sequence = tl.load(sequences + row).to(tl.int64)
    entry = tl.load(entry_of + sequence)
    base = tl.load(stored_count + entry)
    end = tl.load(stored_end + entry)
    first = stored + entry * stored_capacity * 4
    lent = tile < base
    place = end + (tile - base) * _PAGE
    pos0 = tl.where(lent, tl.load(first + tile * 4 + 3, mask=lent, other=0), place)
    there = (tile < capacity) & (pos0 < keys)
    bounds = tl.load(first + tile * 4 + 1, mask=lent & there, other=0)
    lo = bounds & 0xFFFF
    hi = tl.minimum(tl.where(lent, bounds >> 16, _PAGE), lo + keys - pos0)
    # Pages of others are stored; own ones are what the slot table says now.
    page = tl.load(first + tile * 4, mask=lent & there, other=-1)
    own = there & (page < 0)
    slot = tl.load(slots + sequence * slots_stride + pos0.to(tl.int64), mask=own, other=0)
    page = tl.where(own, (slot // _PAGE).to(tl.int32), page)
    delta = tl.load(first + tile * 4 + 2, mask=lent & there, other=0)
    out = tiles + (row.to(tl.int64) * capacity + tile) * 4
    tl.store(out, page, mask=there)
    tl.store(out + 1, lo | (hi << 16), mask=there)
    tl.store(out + 2, delta, mask=there)
    tl.store(out + 3, pos0, mask=there)
    if tl.program_id(1) == 0:
        tl.store(start + row, row * capacity)
        number = base + tl.cdiv(tl.maximum(keys - end, 0), _PAGE)
        if keys < end:
            number = 0
            for begin in range(0, base, BLOCK):
                other = begin + tl.arange(0, BLOCK)
                at = tl.load(first + other * 4 + 3, mask=other < base, other=keys)
                number += tl.sum((at < keys).to(tl.int32), 0)
        tl.store(count + row, tl.minimum(number, capacity))


def loan_tiles(
    slots: Tensor,
    sequences: Tensor,
    lengths: Tensor,
    entry_of: Tensor,
    stored: tuple[Tensor, Tensor, Tensor],
    capacity: int,
) -> TileTable:
    """Build the tile table of rows whose sequences may borrow.

    Parameters
    ----------
    slots, sequences, lengths
        See `LoanTables.compose`.
    entry_of : Tensor, int64, [requests]
        Entry of each sequence.
    stored : tuple of Tensor, int32, [entries, tiles, 4], [entries] and [entries]
        Tiles of each entry, how many, and the position behind them.
    capacity : int
        Most tiles of a row.
    """
    rows = len(sequences)
    table = TileTable.room(rows, capacity, slots.device)
    if rows:
        _irminsul_loan_tiles[rows, triton.cdiv(capacity, _BLOCK)](
            slots,
            slots.stride(0),
            sequences,
            lengths,
            entry_of,
            *stored,
            stored[0].shape[1],
            table.tiles,
            table.start,
            table.count,
            capacity,
            BLOCK=_BLOCK,
            num_warps=4,
        )
    return table
