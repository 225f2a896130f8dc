"""SGLang's slot table and the parts of its queries and rows -> what the attention kernel reads.

Triton, for use inside CUDA graphs: must know no layer and no engine object, wait for nothing, and
depend on values in no shape. One launch a decode step makes all that describes a batch of whole
pages, one launch a layer puts queries together and writes the new rows. Profilers and sanitizers
find these kernels by the project's name.
"""

# ruff: noqa: N803  (constants of Triton kernels are written in capitals)
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from irminsul.attention import PAGE_SIZE, TileTable

_TILES = 256  # of one program
_PAGE = tl.constexpr(PAGE_SIZE)


@triton.jit  # type: ignore[untyped-decorator]
def _irminsul_page_tiles(  # type: ignore[no-untyped-def]
    slots, slots_stride, sequences, lengths, tiles, start, count, capacity, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    tile = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keys = tl.load(lengths + row).to(tl.int32)
    number = tl.minimum(tl.cdiv(keys, _PAGE), capacity)
    own = slots + tl.load(sequences + row).to(tl.int64) * slots_stride
    there = tile < number
    slot = tl.load(own + tile.to(tl.int64) * _PAGE, mask=there, other=0)
    out = tiles + (row.to(tl.int64) * capacity + tile) * 4
    tl.store(out, (slot // _PAGE).to(tl.int32), mask=there)
    tl.store(out + 1, tl.minimum(keys - tile * _PAGE, _PAGE) << 16, mask=there)
    tl.store(out + 2, tl.zeros_like(tile), mask=there)
    tl.store(out + 3, tile * _PAGE, mask=there)
    if tl.program_id(1) == 0:
        tl.store(start + row, row * capacity)
        tl.store(count + row, number)


@triton.jit  # type: ignore[untyped-decorator]
def _irminsul_last_tokens(lengths, indptr, q_pos, rows, tokens, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = row < rows
    keys = tl.load(lengths + row, mask=there, other=0).to(tl.int32)
    tl.store(q_pos + row, keys - tokens, mask=there)
    tl.store(indptr + row, row * tokens, mask=row <= rows)


@triton.jit  # type: ignore[untyped-decorator]
def _irminsul_join(  # type: ignore[no-untyped-def]
    q_latent,
    q_latent_token,
    q_latent_head,
    q_rope,
    q_rope_token,
    q_rope_head,
    q,
    k_latent,
    k_latent_token,
    k_rope,
    k_rope_token,
    rows,
    rows_stride,
    slots,
    cos_sin,
    positions,
    HEADS: tl.constexpr,
    LATENT: tl.constexpr,
    ROPE: tl.constexpr,
    TURN: tl.constexpr,
):
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    latent = tl.arange(0, LATENT)
    if head < HEADS:
        out = q + (token * HEADS + head) * (LATENT + ROPE)
        own = q_latent + token * q_latent_token + head.to(tl.int64) * q_latent_head
        tl.store(out + latent, tl.load(own + latent))
        own = q_rope + token * q_rope_token + head.to(tl.int64) * q_rope_head
    else:
        out = rows + tl.load(slots + token).to(tl.int64) * rows_stride
        tl.store(out + latent, tl.load(k_latent + token * k_latent_token + latent))
        own = k_rope + token * k_rope_token
    if TURN == 0:
        rope = tl.arange(0, ROPE)
        tl.store(out + LATENT + rope, tl.load(own + rope))
    else:
        pair = tl.arange(0, ROPE // 2)
        # Pairs (2i, 2i + 1), or (i, i + 32) where the halves are apart.
        first = pair * 2 if TURN == 1 else pair
        second = first + (1 if TURN == 1 else ROPE // 2)
        angles = cos_sin + tl.load(positions + token).to(tl.int64) * ROPE
        cos = tl.load(angles + pair).to(tl.float32)
        sin = tl.load(angles + ROPE // 2 + pair).to(tl.float32)
        a, b = tl.load(own + first).to(tl.float32), tl.load(own + second).to(tl.float32)
        number = out.dtype.element_ty
        tl.store(out + LATENT + first, (a * cos - b * sin).to(number))
        tl.store(out + LATENT + second, (b * cos + a * sin).to(number))


def page_tiles(slots: Tensor, sequences: Tensor, lengths: Tensor) -> TileTable:
    """Build the tile table of sequences that were allocated by pages of 64, in one launch.

    Parameters
    ----------
    slots : Tensor, int32, [sequences, width]
        ``slots[s, p]`` is the pool row of position ``p`` of sequence ``s``.
    sequences, lengths : Tensor, integer, [rows]
        Which sequence each row belongs to, and how many keys it sees.

    Returns
    -------
    TileTable
        As `irminsul.attention.tiles_from_pages` gives for the same pages; every row has room for
        its sequence's whole width.
    """
    rows, capacity = len(sequences), triton.cdiv(slots.shape[1], PAGE_SIZE)
    table = TileTable.room(rows, capacity, slots.device)
    if rows:
        _irminsul_page_tiles[rows, triton.cdiv(capacity, _TILES)](
            slots,
            slots.stride(0),
            sequences,
            lengths,
            table.tiles,
            table.start,
            table.count,
            capacity,
            BLOCK=_TILES,
            num_warps=4,
        )
    return table


def last_tokens(lengths: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """Return q_indptr and q_pos, int32, of rows that ask for their last `tokens` tokens each."""
    rows = len(lengths)
    indptr = torch.empty(rows + 1, dtype=torch.int32, device=lengths.device)
    q_pos = torch.empty(rows, dtype=torch.int32, device=lengths.device)
    block = 128
    _irminsul_last_tokens[(triton.cdiv(rows + 1, block),)](
        lengths, indptr, q_pos, rows, tokens, BLOCK=block, num_warps=1
    )
    return indptr, q_pos


def join(
    q_latent: Tensor,
    q_rope: Tensor,
    write: tuple[Tensor, Tensor, Tensor, Tensor] | None,
    turn: tuple[Tensor, Tensor, bool] | None = None,
) -> Tensor:
    """Put the two parts of every query side by side, and write the batch's new rows, in one launch.

    Parameters
    ----------
    q_latent, q_rope : Tensor, [tokens, heads, 512] and [tokens, heads, 64]
        Numbers of a head stand together; heads and tokens may have any stride.
    write : (k_latent, k_rope, rows, slots), optional
        New rows' parts, [tokens, 1, 512] and [tokens, 1, 64]; the pool's rows, [slots, 1, 576];
        and where each goes, integer, [tokens].
    turn : (cos_sin, positions, halves), optional
        Rotate ``q_rope`` and ``k_rope`` on the way: SGLang's table [positions, 64] as cosines and
        sines, each token's position, integer, and whether a pair is (i, i + 32), not (2i, 2i + 1).
        In fp32, rounded once.

    Returns
    -------
    Tensor, [tokens, heads, 576]
    """
    tokens, heads, latent = q_latent.shape
    q = torch.empty(
        tokens, heads, latent + q_rope.shape[-1], dtype=q_rope.dtype, device=q_rope.device
    )
    rest: tuple[Any, ...] = (q, 0, q, 0, q, 0, q)
    if write is not None:
        k_latent, k_rope, rows, slots = write
        rest = (k_latent, k_latent.stride(0), k_rope, k_rope.stride(0), rows, rows.stride(0), slots)
    if tokens:
        _irminsul_join[tokens, heads + (write is not None)](
            q_latent,
            q_latent.stride(0),
            q_latent.stride(1),
            q_rope,
            q_rope.stride(0),
            q_rope.stride(1),
            q,
            *rest,
            *(turn[:2] if turn else (q, q)),
            HEADS=heads,
            LATENT=latent,
            ROPE=q_rope.shape[-1],
            TURN=0 if turn is None else 1 + turn[2],
            num_warps=1,
        )
    return q
