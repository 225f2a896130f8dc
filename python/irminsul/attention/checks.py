"""Inputs of an attention call -> nothing, or a typed error that names what no backend takes.

Knows shapes, dtypes and devices; never reads a value, so it never waits for a GPU.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from irminsul.attention.reference import HEAD_DIM, ROPE_DIM
from irminsul.attention.tiles import PAGE_SIZE, TileTable
from irminsul.errors import InvalidParams


def check_table(table: TileTable, q_indptr: Tensor, q_pos: Tensor) -> None:
    """Raise `InvalidParams` unless the table and the rows' queries are what kernels read."""
    rows, device = table.start.shape[0], table.tiles.device
    for name, tensor, shape in (
        ("table.tiles", table.tiles, (table.tiles.shape[0], 4)),
        ("table.start", table.start, (rows,)),
        ("table.count", table.count, (rows,)),
        ("q_indptr", q_indptr, (rows + 1,)),
        ("q_pos", q_pos, (rows,)),
    ):
        if tensor.dtype != torch.int32 or not tensor.is_contiguous():
            raise InvalidParams(f"{name} must be contiguous int32, it is {tensor.dtype}")
        if tensor.shape != shape:
            raise InvalidParams(
                f"{name} has shape {list(tensor.shape)}; with {rows} rows it must be {list(shape)}"
            )
        if tensor.device != device:
            raise InvalidParams(f"{name} is on {tensor.device}, table.tiles on {device}")


def check_inputs(q: Tensor, cache: Tensor, cos_sin: Tensor | None, scale: float) -> None:
    """Raise `InvalidParams` for a bf16 cache, or queries, that no backend takes."""
    check_queries(q, cos_sin, scale)
    if cache.ndim != 3 or cache.shape[1:] != (PAGE_SIZE, HEAD_DIM):
        raise InvalidParams(
            f"cache has shape {tuple(cache.shape)}; it must be [num_pages, {PAGE_SIZE}, {HEAD_DIM}]"
        )
    if q.dtype != cache.dtype:
        raise InvalidParams(f"q is {q.dtype} but cache is {cache.dtype}")
    check_device("cache", cache, q)


def check_queries(q: Tensor, cos_sin: Tensor | None, scale: float) -> None:
    """Raise `InvalidParams` for queries, angles or a scale that no backend takes."""
    if q.ndim != 3 or q.shape[2] != HEAD_DIM:
        raise InvalidParams(
            f"q has shape {tuple(q.shape)}; it must be [total_q, heads, {HEAD_DIM}]"
        )
    if not 1 <= q.shape[1] <= 128:
        raise InvalidParams(f"q has {q.shape[1]} heads; 1 to 128 are supported")
    if not math.isfinite(scale):
        raise InvalidParams(f"scale is {scale}; it must be finite")
    if cos_sin is None:
        return
    if cos_sin.ndim != 2 or cos_sin.shape[1] != ROPE_DIM:
        raise InvalidParams(
            f"cos_sin has shape {tuple(cos_sin.shape)}; it must be [max_pos, {ROPE_DIM}]"
        )
    if cos_sin.dtype != torch.float32 or not cos_sin.is_contiguous():
        raise InvalidParams(f"cos_sin must be contiguous float32, it is {cos_sin.dtype}")
    check_device("cos_sin", cos_sin, q)


def check_device(name: str, tensor: Tensor, q: Tensor) -> None:
    """Raise `InvalidParams` where a tensor is not on the queries' device."""
    if tensor.device != q.device:
        raise InvalidParams(f"{name} is on {tensor.device}, q on {q.device}")
