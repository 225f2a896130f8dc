"""SGLang's slot table of an engine with small pages -> key tiles, found from neighbouring slots.

Triton, for use inside CUDA graphs: must wait for nothing and depend on values in no shape.
"""

# ruff: noqa: N803  (constants of Triton kernels are written in capitals)
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from irminsul.attention import PAGE_SIZE, TileTable

_PIECES = 1024  # of one program
_CHUNKS = 256  # read at least, so that no length up to 262,144 compiles anew
_PAGE = tl.constexpr(PAGE_SIZE)


@triton.jit  # type: ignore[untyped-decorator]
def _begins(own, token, there, PIECE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Whether each piece's first slot does not follow the piece before it, or begins a page."""
    slot = tl.load(own + token, mask=there, other=0).to(tl.int32)
    before = tl.load(own + token - PIECE, mask=there & (token > 0), other=-PIECE - 1).to(tl.int32)
    return there & ((slot % _PAGE == 0) | (slot != before + PIECE))


@triton.jit  # type: ignore[untyped-decorator]
def _irminsul_count_begins(  # type: ignore[no-untyped-def]
    slots,
    slots_stride,
    sequences,
    lengths,
    begins,
    width,
    chunks,
    PIECE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    keys = tl.minimum(tl.load(lengths + row).to(tl.int32), width)
    begin = tl.program_id(1) * BLOCK
    # The grid covers the longest sequence there may be; most of it has nothing to do.
    if begin * PIECE < keys:
        own = slots + tl.load(sequences + row).to(tl.int64) * slots_stride
        token = (begin + tl.arange(0, BLOCK)) * PIECE
        number = tl.sum(_begins(own, token, token < keys, PIECE).to(tl.int32), 0)
        tl.store(begins + row * chunks + tl.program_id(1), number)


@triton.jit  # type: ignore[untyped-decorator]
def _irminsul_slot_tiles(  # type: ignore[no-untyped-def]
    slots,
    slots_stride,
    sequences,
    lengths,
    begins,
    tiles,
    bounds,
    start,
    count,
    width,
    capacity,
    chunks,
    CHUNKS: tl.constexpr,
    PIECE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, chunk = tl.program_id(0), tl.program_id(1)
    keys = tl.minimum(tl.load(lengths + row).to(tl.int32), width)
    if (chunk == 0) | (chunk * BLOCK * PIECE < keys):
        own = slots + tl.load(sequences + row).to(tl.int64) * slots_stride
        at = tl.arange(0, CHUNKS)
        counts = tl.load(begins + row * chunks + at, mask=at * BLOCK * PIECE < keys, other=0)
        token = (chunk * BLOCK + tl.arange(0, BLOCK)) * PIECE
        there = token < keys
        first = _begins(own, token, there, PIECE)
        after = token + PIECE
        last = there & ((after >= keys) | _begins(own, after, after < keys, PIECE))
        tile = tl.sum(tl.where(at < chunk, counts, 0), 0) + tl.cumsum(first.to(tl.int32), 0) - 1
        slot = tl.load(own + token, mask=there, other=0).to(tl.int32)
        place = row.to(tl.int64) * capacity + tile
        tl.store(tiles + place * 4, slot // _PAGE, mask=first)
        tl.store(bounds + place * 8 + 2, (slot % _PAGE).to(tl.int16), mask=first)
        end = slot % _PAGE + tl.minimum(keys - token, PIECE)
        tl.store(bounds + place * 8 + 3, end.to(tl.int16), mask=last)
        tl.store(tiles + place * 4 + 2, tl.zeros_like(slot), mask=first)
        tl.store(tiles + place * 4 + 3, token, mask=first)
        if chunk == 0:
            tl.store(start + row, row * capacity)
            tl.store(count + row, tl.sum(counts, 0))


def slot_tiles(slots: Tensor, sequences: Tensor, lengths: Tensor, piece: int = 1) -> TileTable:
    """Build the tile table of sequences that were allocated in smaller pieces, in two launches.

    Parameters
    ----------
    slots, sequences, lengths
        As `page_tiles` takes them.
    piece : int
        The engine's page, a divisor of 64: so many slots stand together in any case.

    Returns
    -------
    TileTable
        Neighbouring slots of one page are one tile; every row has room for a tile a piece.
    """
    rows, width = len(sequences), slots.shape[1]
    capacity = triton.cdiv(width, piece)
    chunks = triton.cdiv(capacity, _PIECES)
    table = TileTable.room(rows, capacity, slots.device)
    begins = torch.empty(rows, chunks, dtype=torch.int32, device=slots.device)
    if rows:
        common = (slots, slots.stride(0), sequences, lengths, begins)
        sizes = {"PIECE": piece, "BLOCK": _PIECES, "num_warps": 4}
        _irminsul_count_begins[rows, chunks](*common, width, chunks, **sizes)
        _irminsul_slot_tiles[rows, chunks](
            *common,
            table.tiles,
            table.tiles.view(torch.int16),
            table.start,
            table.count,
            width,
            capacity,
            chunks,
            CHUNKS=max(_CHUNKS, triton.next_power_of_2(chunks)),
            **sizes,
        )
    return table
