"""Tiles of a batch -> what is made of them once for all query rows: wide pages, turned k_r.

Knows torch's pointers and streams and the C ABI; nothing of attention.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from irminsul.attention.reference import HEAD_DIM, ROPE_DIM
from irminsul.attention.tiles import PAGE_SIZE
from irminsul.errors import InvalidParams
from irminsul.native import abi, loader

TURNED_ROWS = 1024
"""Query rows (token x head) of a sequence from which its k_r are turned once for all of them."""
TURNED_BYTES = 256 << 20
"""Memory that the turned k_r of a call may take."""
GRID_ROWS = 65_535
"""Sequences that a kernel over the table takes: its grid has a row of blocks for each."""


def page_stride(cache: Tensor) -> int:
    """Return the bytes from one page to the next."""
    if cache.stride(2) != 1 or cache.stride(1) != cache.shape[2]:
        raise InvalidParams(
            f"rows of a page must be contiguous; cache has strides {cache.stride()}"
        )
    numbers = cache.stride(0) if cache.shape[0] > 1 else PAGE_SIZE * cache.shape[2]
    return numbers * cache.element_size()


def turn_tiles(
    cache: Tensor,
    tiles: Tensor,
    tile_start: Tensor,
    tile_count: Tensor,
    cos_sin: Tensor | None,
    interleaved: bool,
    query_rows: int,
) -> Tensor | None:
    """Turn the k_r of all tiles that have a delta, once for many query rows.

    Parameters
    ----------
    cache : Tensor, bfloat16, [num_pages, 64, 576]
    tiles : Tensor, int32, [num_tiles, 4]
    tile_start, tile_count : Tensor, int32, [num_rows]
    cos_sin, interleaved
        See `mla_attention`.
    query_rows : int
        Query rows (token x head) of a sequence.

    Returns
    -------
    Tensor, bfloat16, [num_tiles, 64, 64], or None
        Slab ``i`` is tile ``i``'s; not written where the delta is 0 or no row has the tile. None
        where the attention kernel is to turn its tiles itself: without angles or tiles, below
        `TURNED_ROWS`, where the slabs would take more than `TURNED_BYTES`.
    """
    num_tiles, rows = tiles.shape[0], tile_start.shape[0]
    size = num_tiles * PAGE_SIZE * ROPE_DIM * cache.element_size()
    if cos_sin is None or query_rows < TURNED_ROWS:
        return None
    if not 0 < size <= TURNED_BYTES or rows > GRID_ROWS:
        return None
    slabs = torch.empty(num_tiles, PAGE_SIZE, ROPE_DIM, dtype=cache.dtype, device=cache.device)
    handle = loader.library()
    with torch.cuda.device(cache.device):
        params = abi.MlaTurnParams(
            cache=cache.data_ptr(),
            tiles=tiles.data_ptr(),
            tile_start=tile_start.data_ptr(),
            tile_count=tile_count.data_ptr(),
            cos_sin=cos_sin.data_ptr(),
            slabs=slabs.data_ptr(),
            stream=torch.cuda.current_stream().cuda_stream,
            page_stride=page_stride(cache),
            num_tiles=num_tiles,
            num_rows=rows,
            num_positions=cos_sin.shape[0],
            interleaved=int(interleaved),
        )
        abi.check(handle, handle.irm_mla_turn(ctypes.byref(params)), "mla_turn")
    return slabs


def widen_tiles(
    cache: Tensor, tiles: Tensor, tile_start: Tensor, tile_count: Tensor
) -> tuple[Tensor, Tensor]:
    """Copy the fp8 pages that tiles name into bf16 pages of their own.

    Parameters
    ----------
    cache : Tensor, uint8, [num_pages, 64, 656]
    tiles : Tensor, int32, [num_tiles, 4]
    tile_start, tile_count : Tensor, int32, [num_rows]

    Returns
    -------
    pages : Tensor, bfloat16, [num_tiles, 64, 576]
        Page ``i`` is tile ``i``'s, zero outside its bounds; not written where no row has the tile.
    wide_tiles : Tensor, int32, [num_tiles, 4]
        The same tiles over `pages`.
    """
    num_tiles = tiles.shape[0]
    pages = torch.empty(num_tiles, PAGE_SIZE, HEAD_DIM, dtype=torch.bfloat16, device=cache.device)
    wide = torch.empty_like(tiles)
    handle = loader.library()
    with torch.cuda.device(cache.device):
        params = abi.MlaWidenParams(
            cache=cache.data_ptr(),
            tiles=tiles.data_ptr(),
            tile_start=tile_start.data_ptr(),
            tile_count=tile_count.data_ptr(),
            pages=pages.data_ptr(),
            wide_tiles=wide.data_ptr(),
            stream=torch.cuda.current_stream().cuda_stream,
            page_stride=page_stride(cache),
            num_tiles=num_tiles,
            num_rows=tile_start.shape[0],
        )
        abi.check(handle, handle.irm_mla_fp8_widen(ctypes.byref(params)), "mla_fp8_widen")
    return pages, wide
