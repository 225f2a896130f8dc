"""The operators `irminsul::mla_attention` and `irminsul::mla_plan`, and their plain functions.

Defines shapes and the CPU backend (the reference); must not know ctypes or how a kernel works.
"""

from __future__ import annotations

import torch
from torch import Tensor

from irminsul.attention.checks import check_inputs, check_table
from irminsul.attention.reference import LATENT_DIM, mla_attention_reference
from irminsul.attention.tiles import TileTable

_OPS = torch.library.Library("irminsul", "FRAGMENT")  # type: ignore[no-untyped-call]
_OPS.define(  # type: ignore[no-untyped-call]
    "mla_plan(Tensor tiles, Tensor tile_start, Tensor tile_count, Tensor q_indptr, Tensor q_pos, "
    "int total_q, int num_heads, int max_q_len, int cluster=0) -> Tensor"
)
_OPS.define(  # type: ignore[no-untyped-call]
    "mla_attention(Tensor q, Tensor cache, Tensor tiles, Tensor tile_start, Tensor tile_count, "
    "Tensor q_indptr, Tensor q_pos, Tensor? cos_sin, Tensor plan, float scale, bool interleaved, "
    "int max_q_len, int cluster=0) -> (Tensor, Tensor)"
)


def plan_attention(
    table: TileTable,
    q_indptr: Tensor,
    q_pos: Tensor,
    *,
    total_q: int,
    num_heads: int,
    max_q_len: int,
    cluster: int = 0,
) -> Tensor:
    """Divide one batch's work over the GPU; the plan serves every layer of the model.

    Parameters
    ----------
    table : TileTable
        Keys of each row, on the device of the cache.
    q_indptr : Tensor, int32, [num_rows + 1]
        Row ``r`` owns query tokens ``q_indptr[r]`` to ``q_indptr[r + 1]``. Query tokens from
        ``q_indptr[num_rows]`` to `total_q` are padding: zeros come out for them.
    q_pos : Tensor, int32, [num_rows]
        Position of each row's first query token.
    total_q, num_heads : int
        Leading shape of the queries to come.
    max_q_len : int
        Most query tokens of a row that are to be expected: chooses the kernel variant. A row may
        have more.
    cluster : int
        CTAs that take one sequence's keys at the same time: 1, 2 or 4, for measurements; 0 chooses.

    Returns
    -------
    Tensor, uint8
        Opaque; valid while the values of the arguments stay the same. Empty on the CPU. Made
        without synchronisation, so a CUDA graph may hold this call too.

    Raises
    ------
    InvalidParams
        A shape, dtype or device is not as above.
    """
    check_table(table, q_indptr, q_pos)
    plan: Tensor = torch.ops.irminsul.mla_plan(
        table.tiles,
        table.start,
        table.count,
        q_indptr,
        q_pos,
        total_q,
        num_heads,
        max_q_len,
        cluster,
    )
    return plan


def mla_attention(
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
    cluster: int = 0,
) -> tuple[Tensor, Tensor]:
    """Attend every query token to the keys of its row at or before its own position.

    Parameters
    ----------
    q : Tensor, bfloat16, [total_q, num_heads, 576]
        Absorbed queries: 512 latent columns, then 64 already rotated to the query's position.
    cache : Tensor, bfloat16, [num_pages, 64, 576]
        Latent rows ``[c_KV | k_r]``.
    table, q_indptr, q_pos
        See `plan_attention`.
    scale : float
        Factor on the scores before the softmax.
    max_q_len : int
        See `plan_attention`; the same value for both.
    cos_sin : Tensor, float32, [max_pos, 64], optional
        ``[cos(32) | sin(32)]`` by position without mscale; needed when any tile has a delta.
    interleaved : bool
        Rotary pairs are ``(2i, 2i + 1)`` when true, ``(i, i + 32)`` otherwise.
    plan : Tensor, optional
        From `plan_attention`; made here when missing.
    cluster : int
        See `plan_attention`.

    Returns
    -------
    out : Tensor, dtype of `q`, [total_q, num_heads, 512]
        Zeros where a query has no key.
    lse : Tensor, float32, [total_q, num_heads]
        Natural logarithm of the sum of exponentials; -inf where a query has no key.

    Raises
    ------
    InvalidParams
        A shape or dtype is not as above.

    Notes
    -----
    ``out = softmax_j(scale * q . [c_j | R(delta_j) k_r_j]) c_j``; `mla_attention_reference` is the
    specification. On the GPU a delta beyond `cos_sin` gives NaN.
    """
    check_inputs(q, cache, cos_sin, scale)
    if plan is None:
        plan = plan_attention(
            table,
            q_indptr,
            q_pos,
            total_q=q.shape[0],
            num_heads=q.shape[1],
            max_q_len=max_q_len,
            cluster=cluster,
        )
    out, lse = torch.ops.irminsul.mla_attention(
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
        cluster,
    )
    return out, lse


def _plan_cpu(tiles: Tensor, *_: object) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=tiles.device)


def _plan_fake(
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
    if tiles.device.type == "cpu":
        return tiles.new_empty(0, dtype=torch.uint8)
    size = torch.library.get_ctx().new_dynamic_size()
    return tiles.new_empty(size, dtype=torch.uint8)


def attention_by_reference(
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
    """Run the operator by the reference, whatever the device."""
    out, lse = mla_attention_reference(
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


def attention_fake(q: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    """Return empty results of the shapes that every attention operator gives."""
    out = q.new_empty(q.shape[0], q.shape[1], LATENT_DIM)
    return out, q.new_empty(q.shape[0], q.shape[1], dtype=torch.float32)


_OPS.impl("mla_plan", _plan_cpu, "CPU")  # type: ignore[no-untyped-call]
_OPS.impl("mla_attention", attention_by_reference, "CPU")  # type: ignore[no-untyped-call]
torch.library.register_fake("irminsul::mla_plan", _plan_fake, lib=_OPS)
torch.library.register_fake("irminsul::mla_attention", attention_fake, lib=_OPS)
