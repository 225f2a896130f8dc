"""The operator `irminsul::mla_attention_fp8`: its shapes, its CPU backend and its CUDA kernel.

Must not know ctypes, how rows are made or how a kernel divides its work.
"""

from __future__ import annotations

import torch
from torch import Tensor

from irminsul.attention.checks import check_device, check_queries
from irminsul.attention.cuda import launch_attention, launch_plan
from irminsul.attention.fp8 import FP8_ROW_BYTES, mla_attention_fp8_reference
from irminsul.attention.op import attention_fake, plan_attention
from irminsul.attention.prepared import GRID_ROWS, turn_tiles, widen_tiles
from irminsul.attention.reference import HEAD_DIM
from irminsul.attention.tiles import PAGE_SIZE, TileTable
from irminsul.errors import InvalidParams
from irminsul.native import loader

WIDENED_ROWS = 512
"""Query rows (token x head) of a sequence from which its keys are widened once for all of them."""
WIDENED_BYTES = 1 << 30
"""Memory that the widened pages of a call may take."""

_OPS = torch.library.Library("irminsul", "FRAGMENT")  # type: ignore[no-untyped-call]
_OPS.define(  # type: ignore[no-untyped-call]
    "mla_attention_fp8(Tensor q, Tensor cache, Tensor tiles, Tensor tile_start, "
    "Tensor tile_count, Tensor q_indptr, Tensor q_pos, Tensor? cos_sin, Tensor plan, float scale, "
    "bool interleaved, int max_q_len) -> (Tensor, Tensor)"
)


def mla_attention_fp8(
    q: Tensor,
    cache: Tensor,
    table: TileTable,
    q_indptr: Tensor,
    q_pos: Tensor,
    *,
    scale: float,
    max_q_len: int,
    cos_sin: Tensor | None = None,
    interleaved: bool = True,
    plan: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attend as `mla_attention` does, over a cache that holds ``c_KV`` in e4m3.

    Parameters
    ----------
    q : Tensor, bfloat16, [total_q, num_heads, 576]
    cache : Tensor, uint8, [num_pages, 64, 656]
        Rows as `quantize_rows` makes them: 656 bytes a token against 1,152.
    plan : Tensor, optional
        From ``plan_attention(..., cluster=1)``; made here when missing.
    table, q_indptr, q_pos, scale, max_q_len, cos_sin, interleaved
        See `mla_attention`.

    Returns
    -------
    out, lse
        See `mla_attention`.

    Raises
    ------
    InvalidParams
        A shape or dtype is not as above.

    Notes
    -----
    The kernel multiplies bf16: each number of ``c_KV`` times its factor, rounded once.
    `mla_attention_fp8_reference` is the specification. Where a sequence has 512 query rows (token x
    head) or more, its keys are widened to bf16 pages first, once for all of them: 73,728 bytes for
    each entry of ``table.tiles``, up to 1 GiB; a larger table is read as it is.
    """
    check_queries(q, cos_sin, scale)
    check_device("cache", cache, q)
    if cache.dtype != torch.uint8 or cache.shape[1:] != (PAGE_SIZE, FP8_ROW_BYTES):
        raise InvalidParams(
            f"cache is {cache.dtype} {tuple(cache.shape)}; it must be uint8 "
            f"[num_pages, {PAGE_SIZE}, {FP8_ROW_BYTES}]"
        )
    if plan is None:
        plan = plan_attention(
            table,
            q_indptr,
            q_pos,
            total_q=q.shape[0],
            num_heads=q.shape[1],
            max_q_len=max_q_len,
            cluster=1,
        )
    out, lse = torch.ops.irminsul.mla_attention_fp8(
        q,
        cache,
        table.tiles,
        table.start,
        table.count,
        q_indptr,
        q_pos,
        cos_sin,
        plan,
        scale,
        interleaved,
        max_q_len,
    )
    return out, lse


def _by_reference(
    q: Tensor,
    cache: Tensor,
    tiles: Tensor,
    tile_start: Tensor,
    tile_count: Tensor,
    q_indptr: Tensor,
    q_pos: Tensor,
    cos_sin: Tensor | None,
    plan: Tensor,
    scale: float,
    interleaved: bool,
    max_q_len: int,
) -> tuple[Tensor, Tensor]:
    out, lse = mla_attention_fp8_reference(
        q,
        cache,
        TileTable(tiles, tile_start, tile_count),
        q_indptr,
        q_pos,
        scale=scale,
        cos_sin=cos_sin,
        interleaved=interleaved,
        compute_dtype=torch.promote_types(q.dtype, torch.float32),
    )
    return out.to(q.dtype), lse.float()


def _by_kernel(
    q: Tensor,
    cache: Tensor,
    tiles: Tensor,
    tile_start: Tensor,
    tile_count: Tensor,
    q_indptr: Tensor,
    q_pos: Tensor,
    cos_sin: Tensor | None,
    plan: Tensor,
    scale: float,
    interleaved: bool,
    max_q_len: int,
) -> tuple[Tensor, Tensor]:
    if q.dtype != torch.bfloat16 or not loader.supports_device(q.device.index):
        return _by_reference(
            q,
            cache,
            tiles,
            tile_start,
            tile_count,
            q_indptr,
            q_pos,
            cos_sin,
            plan,
            scale,
            interleaved,
            max_q_len,
        )
    kernel, cluster = loader.library().irm_mla_fp8_attention, 1
    query_rows, turned = q.shape[1] * max_q_len, None
    some = tiles.shape[0] > 0 and tile_start.shape[0] <= GRID_ROWS
    size = tiles.shape[0] * PAGE_SIZE * HEAD_DIM * q.element_size()
    if query_rows >= WIDENED_ROWS and some and size <= WIDENED_BYTES:
        kernel, cluster = loader.library().irm_mla_attention, 0
        cache, tiles = widen_tiles(cache, tiles, tile_start, tile_count)
        table, shape = (tiles, tile_start, tile_count), (q.shape[0], q.shape[1], max_q_len, cluster)
        plan = launch_plan(*table, q_indptr, q_pos, *shape)
        turned = turn_tiles(cache, *table, cos_sin, interleaved, query_rows)
    return launch_attention(
        "mla_attention_fp8",
        kernel,
        q,
        cache,
        tiles,
        tile_start,
        cos_sin,
        plan,
        scale,
        interleaved,
        max_q_len,
        cluster,
        turned,
    )


_OPS.impl("mla_attention_fp8", _by_reference, "CPU")  # type: ignore[no-untyped-call]
_OPS.impl("mla_attention_fp8", _by_kernel, "CUDA")  # type: ignore[no-untyped-call]
torch.library.register_fake("irminsul::mla_attention_fp8", attention_fake, lib=_OPS)
