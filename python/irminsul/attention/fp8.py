"""Latent rows <-> their 656-byte fp8 form, and attention over a cache of such rows in plain torch.

The format and the specification of the fp8 kernel; knows nothing of the CUDA library.
"""

from __future__ import annotations

import torch
from torch import Tensor

from irminsul.attention.reference import HEAD_DIM, LATENT_DIM, attend_rows, gather_keys
from irminsul.attention.tiles import TileTable
from irminsul.errors import InvalidParams

GROUP = 128
"""Numbers of ``c_KV`` that share one factor."""
FP8_ROW_BYTES = 656
"""512 e4m3 numbers of ``c_KV``, 4 fp32 factors, 64 bf16 numbers of ``k_r``, in this order."""
_FACTORS = slice(LATENT_DIM, LATENT_DIM + LATENT_DIM // GROUP * 4)
_ROPE = slice(_FACTORS.stop, FP8_ROW_BYTES)
_E4M3_MAX = 448.0


def quantize_rows(rows: Tensor) -> Tensor:
    """Store latent rows with ``c_KV`` in e4m3.

    Parameters
    ----------
    rows : Tensor, floating, [..., 576]
        ``[c_KV | k_r]``.

    Returns
    -------
    Tensor, uint8, [..., 656]
        Number ``i`` of ``c_KV`` is ``e4m3[i] * factor[i // 128]``; the largest of a group becomes
        448. ``k_r`` is rounded to bf16. A group with a NaN or an infinity reads back as NaN.

    Raises
    ------
    InvalidParams
        The last dimension is not 576.
    """
    if rows.shape[-1] != HEAD_DIM:
        raise InvalidParams(f"rows have {rows.shape[-1]} numbers; they must have {HEAD_DIM}")
    groups = rows[..., :LATENT_DIM].float()
    groups = groups.reshape(*rows.shape[:-1], LATENT_DIM // GROUP, GROUP)
    largest = groups.abs().amax(-1, keepdim=True)
    factors = torch.where(largest == 0, 1.0, largest / _E4M3_MAX)
    numbers = (groups / factors).clamp(-_E4M3_MAX, _E4M3_MAX).to(torch.float8_e4m3fn)
    parts = [
        numbers.flatten(-2).view(torch.uint8),
        factors.squeeze(-1).contiguous().view(torch.uint8),
        rows[..., LATENT_DIM:].bfloat16().contiguous().view(torch.uint8),
    ]
    return torch.cat(parts, -1)


def dequantize_rows(rows: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return what fp8 rows stand for, exactly in float64 and rounded once in other dtypes.

    Parameters
    ----------
    rows : Tensor, uint8, [..., 656]
    dtype : torch.dtype
        Of the result.

    Returns
    -------
    Tensor, dtype, [..., 576]

    Raises
    ------
    InvalidParams
        `rows` are not bytes, or not 656 of them.
    """
    if rows.dtype != torch.uint8 or rows.shape[-1] != FP8_ROW_BYTES:
        raise InvalidParams(
            f"rows are {rows.dtype} {tuple(rows.shape)}; they must be uint8 [..., {FP8_ROW_BYTES}]"
        )
    wide = torch.promote_types(dtype, torch.float32)
    numbers = rows[..., :LATENT_DIM].contiguous().view(torch.float8_e4m3fn).to(wide)
    factors = rows[..., _FACTORS].contiguous().view(torch.float32).to(wide)
    latent = numbers.reshape(*rows.shape[:-1], LATENT_DIM // GROUP, GROUP) * factors[..., None]
    rope = rows[..., _ROPE].contiguous().view(torch.bfloat16).to(wide)
    return torch.cat([latent.flatten(-2), rope], -1).to(dtype)


def mla_attention_fp8_reference(
    q: Tensor,
    cache: Tensor,
    table: TileTable,
    q_indptr: Tensor,
    q_pos: Tensor,
    *,
    scale: float,
    cos_sin: Tensor | None = None,
    interleaved: bool = True,
    compute_dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Attend as `mla_attention_reference` does, over a cache of fp8 rows.

    Parameters
    ----------
    cache : Tensor, uint8, [num_pages, 64, 656]
        See `quantize_rows`.
    q, table, q_indptr, q_pos, scale, cos_sin, interleaved, compute_dtype
        See `mla_attention_reference`.

    Returns
    -------
    out, lse
        See `mla_attention_reference`.
    """

    def keys_of(row: int) -> tuple[Tensor, Tensor]:
        return gather_keys(
            cache,
            table,
            row,
            cos_sin,
            interleaved,
            lambda rows: dequantize_rows(rows, compute_dtype),
        )

    return attend_rows(q, q_indptr, q_pos, keys_of, scale, compute_dtype)
