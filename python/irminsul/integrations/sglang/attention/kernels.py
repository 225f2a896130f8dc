"""SGLang's slot table and the parts of its queries and rows -> what the attention kernel reads.

Triton, for use inside CUDA graphs: must know no layer and no engine object, wait for nothing, and
depend on values in no shape. One launch a decode step makes all that describes a batch of whole
pages, one launch a layer puts queries together and writes the new rows.
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
_TOKENS = 1024  # of one program
_CHUNKS = 256  # read at least, so that no length up to 262,144 compiles anew
_PAGE = tl.constexpr(PAGE_SIZE)


@triton.jit  # type: ignore[untyped-decorator]
def _page_tiles(  # type: ignore[no-untyped-def]
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
def _last_tokens(lengths, indptr, q_pos, rows, tokens, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = row < rows
    keys = tl.load(lengths + row, mask=there, other=0).to(tl.int32)
    tl.store(q_pos + row, keys - tokens, mask=there)
    tl.store(indptr + row, row * tokens, mask=row <= rows)


@triton.jit
def _begins(own, token, there, PIECE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Whether each piece's first slot does not follow the piece before it, or begins a page."""
    slot = tl.load(own + token, mask=there, other=0).to(tl.int32)
    before = tl.load(own + token - PIECE, mask=there & (token > 0), other=-PIECE - 1).to(tl.int32)
    return there & ((slot % _PAGE == 0) | (slot != before + PIECE))


@triton.jit  # type: ignore[untyped-decorator]
def _count_begins(  # type: ignore[no-untyped-def]
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
    own = slots + tl.load(sequences + row).to(tl.int64) * slots_stride
    token = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)) * PIECE
    number = tl.sum(_begins(own, token, token < keys, PIECE).to(tl.int32), 0)
    tl.store(begins + row * chunks + tl.program_id(1), number)


@triton.jit  # type: ignore[untyped-decorator]
def _slot_tiles(  # type: ignore[no-untyped-def]
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
    own = slots + tl.load(sequences + row).to(tl.int64) * slots_stride
    at = tl.arange(0, CHUNKS)
    counts = tl.load(begins + row * chunks + at, mask=at < chunks, other=0)
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


@triton.jit  # type: ignore[untyped-decorator]
def _join(  # type: ignore[no-untyped-def]
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
    table = _room(rows, capacity, slots.device)
    if rows:
        _page_tiles[rows, triton.cdiv(capacity, _TILES)](
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
    chunks = triton.cdiv(capacity, _TOKENS)
    table = _room(rows, capacity, slots.device)
    begins = torch.empty(rows, chunks, dtype=torch.int32, device=slots.device)
    if rows:
        common = (slots, slots.stride(0), sequences, lengths, begins)
        sizes = {"PIECE": piece, "BLOCK": _TOKENS, "num_warps": 4}
        _count_begins[rows, chunks](*common, width, chunks, **sizes)
        _slot_tiles[rows, chunks](
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


def last_tokens(lengths: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """Return q_indptr and q_pos, int32, of rows that ask for their last `tokens` tokens each."""
    rows = len(lengths)
    indptr = torch.empty(rows + 1, dtype=torch.int32, device=lengths.device)
    q_pos = torch.empty(rows, dtype=torch.int32, device=lengths.device)
    block = 128
    _last_tokens[(triton.cdiv(rows + 1, block),)](
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
        _join[tokens, heads + (write is not None)](
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


def _room(rows: int, capacity: int, device: torch.device) -> TileTable:
    return TileTable(
        torch.empty(rows * capacity, 4, dtype=torch.int32, device=device),
        torch.empty(rows, dtype=torch.int32, device=device),
        torch.empty(rows, dtype=torch.int32, device=device),
    )
