"""Tensors of one attention call -> the library's kernels on torch's current stream.

Knows torch's pointers and streams and the C ABI; must not know how the kernels divide their work.
Other GPUs, other dtypes and installations without the library get the torch reference.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from irminsul.attention.op import attention_by_reference
from irminsul.attention.prepared import page_stride, turn_tiles
from irminsul.attention.reference import LATENT_DIM
from irminsul.attention.tiles import TileTable
from irminsul.errors import InvalidParams
from irminsul.native import abi, loader


def build_tiles(
    indices: Tensor, key_lens: Tensor, *, by_slot: bool, deltas: Tensor | None = None
) -> TileTable:
    """Build a tile table on the GPU, without synchronisation.

    Parameters
    ----------
    indices : Tensor, int32, [num_rows, width]
        Pages of each row, or its token slots (``page * 64 + offset``) when `by_slot`.
    key_lens : Tensor, int32, [num_rows]
        Keys of each row; their positions are 0 to ``key_len``.
    by_slot : bool
        What `indices` holds.
    deltas : Tensor, int32, [num_rows, width], optional
        Rotation of each token, only with `by_slot`.

    Returns
    -------
    TileTable
        Every row has room for `width` tiles.

    Raises
    ------
    InvalidParams
        A dtype or shape is not as above.
    """
    for name, tensor in (("indices", indices), ("key_lens", key_lens), ("deltas", deltas)):
        if tensor is not None and tensor.dtype != torch.int32:
            raise InvalidParams(f"{name} is {tensor.dtype}; it must be torch.int32")
    if deltas is not None and (not by_slot or deltas.shape != indices.shape):
        raise InvalidParams("deltas need by_slot and the shape of indices")
    handle = loader.library()
    rows, width = indices.shape
    indices = indices.contiguous()
    deltas = None if deltas is None else deltas.contiguous()
    table = TileTable.room(rows, width, indices.device)
    with torch.cuda.device(indices.device):
        params = abi.MlaTilesParams(
            indices=indices.data_ptr(),
            deltas=0 if deltas is None else deltas.data_ptr(),
            key_lens=key_lens.data_ptr(),
            row_stride=width,
            tiles=table.tiles.data_ptr(),
            tile_start=table.start.data_ptr(),
            tile_count=table.count.data_ptr(),
            stream=torch.cuda.current_stream().cuda_stream,
            num_rows=rows,
            capacity=max(width, 1),
            by_slot=int(by_slot),
        )
        abi.check(handle, handle.irm_mla_tiles(ctypes.byref(params)), "mla_tiles")
    return table


def launch_plan(
    tiles: Tensor,
    tile_start: Tensor,
    tile_count: Tensor,
    q_indptr: Tensor,
    q_pos: Tensor,
    total_q: int,
    num_heads: int,
    max_q_len: int,
    cluster: int = 0,
) -> Tensor:
    """Divide a batch's work, see `plan_attention`; empty where no kernel runs."""
    if not loader.supports_device(tiles.device.index):
        return torch.empty(0, dtype=torch.uint8, device=tiles.device)
    handle = loader.library()
    rows = tile_start.shape[0]
    with torch.cuda.device(tiles.device):
        size = handle.irm_mla_plan_bytes(rows, total_q, num_heads)
        plan = torch.empty(size, dtype=torch.uint8, device=tiles.device)
        params = abi.MlaPlanParams(
            q_indptr=q_indptr.data_ptr(),
            q_pos=q_pos.data_ptr(),
            tile_start=tile_start.data_ptr(),
            tile_count=tile_count.data_ptr(),
            tiles=tiles.data_ptr(),
            plan=plan.data_ptr(),
            plan_bytes=size,
            stream=torch.cuda.current_stream().cuda_stream,
            num_rows=rows,
            total_q=total_q,
            num_heads=num_heads,
            max_q_len=max_q_len,
            cluster=cluster,
        )
        abi.check(handle, handle.irm_mla_plan(ctypes.byref(params)), "mla_plan")
    return plan


def _attention(
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
    cluster: int = 0,
) -> tuple[Tensor, Tensor]:
    if q.dtype != torch.bfloat16 or not loader.supports_device(q.device.index):
        return attention_by_reference(
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
    table, query_rows = (tiles, tile_start, tile_count), q.shape[1] * max_q_len
    turned = turn_tiles(cache, *table, cos_sin, interleaved, query_rows)
    return launch_attention(
        "mla_attention",
        loader.library().irm_mla_attention,
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


def launch_attention(
    action: str,
    entry: Callable[..., int],
    q: Tensor,
    cache: Tensor,
    tiles: Tensor,
    tile_start: Tensor,
    cos_sin: Tensor | None,
    plan: Tensor,
    scale: float,
    interleaved: bool,
    max_q_len: int,
    cluster: int,
    turned: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the library's attention kernel `entry`; `action` is its name in errors."""
    stride = page_stride(cache)
    q = q.contiguous()
    total_q, heads, _ = q.shape
    out = torch.empty(total_q, heads, LATENT_DIM, dtype=q.dtype, device=q.device)
    lse = torch.empty(total_q, heads, dtype=torch.float32, device=q.device)
    handle = loader.library()
    with torch.cuda.device(q.device):
        size = handle.irm_mla_workspace_bytes()
        workspace = torch.empty(size, dtype=torch.uint8, device=q.device)
        params = abi.MlaAttentionParams(
            q=q.data_ptr(),
            cache=cache.data_ptr(),
            tiles=tiles.data_ptr(),
            cos_sin=0 if cos_sin is None else cos_sin.data_ptr(),
            out=out.data_ptr(),
            lse=lse.data_ptr(),
            plan=plan.data_ptr(),
            plan_bytes=plan.numel(),
            workspace=workspace.data_ptr(),
            workspace_bytes=size,
            stream=torch.cuda.current_stream().cuda_stream,
            num_pages=cache.shape[0],
            page_stride=stride,
            scale=scale,
            num_positions=0 if cos_sin is None else cos_sin.shape[0],
            interleaved=int(interleaved),
            num_rows=tile_start.shape[0],
            total_q=total_q,
            num_heads=heads,
            max_q_len=max_q_len,
            cluster=cluster,
            turned=0 if turned is None else turned.data_ptr(),
            num_tiles=tiles.shape[0],
        )
        abi.check(handle, entry(ctypes.byref(params)), action)
    return out, lse


_BACKEND = torch.library.Library("irminsul", "IMPL")  # type: ignore[no-untyped-call]
_BACKEND.impl("mla_plan", launch_plan, "CUDA")  # type: ignore[no-untyped-call]
_BACKEND.impl("mla_attention", _attention, "CUDA")  # type: ignore[no-untyped-call]
