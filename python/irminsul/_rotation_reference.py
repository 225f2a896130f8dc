"""Rows, slots and deltas -> moved rows in plain torch: the meaning that every backend must meet.

Knows no argument checks beyond what the values themselves decide, and no serving engine. Registers
the torch operator ``irminsul::relocate_rows``, for which this is the backend on every device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from irminsul.errors import DeltaOutOfRange, InvalidSlots, OverlappingSlots

ROW_DIM = 576
"""Numbers in a row: 512 of c_KV, then 64 of k_r."""
ROPE_DIM = 64
"""Numbers of k_r: 32 pairs, each turned by its own frequency."""
FP8_STORAGE = (torch.float8_e4m3fn, torch.uint8)
"""Dtypes of a buffer that holds e4m3 rows; engines store them as plain bytes."""
_HALF = ROPE_DIM // 2
_E4M3_MAX = 448.0


def rotate_rows(k_r: Tensor, deltas: Tensor, cos_sin: Tensor, interleaved: bool) -> Tensor:
    """Turn ``k_r`` [..., 64] by ``deltas`` [...], which were checked."""
    turn = cos_sin[deltas.abs()]  # [..., 64] fp32
    cos = turn[..., :_HALF]
    sin = torch.where((deltas < 0).unsqueeze(-1), -turn[..., _HALF:], turn[..., _HALF:])
    x = k_r.float()
    first, second = (
        (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :_HALF], x[..., _HALF:])
    )
    out_first = first * cos - second * sin
    out_second = second * cos + first * sin
    if interleaved:
        turned = torch.stack((out_first, out_second), dim=-1).flatten(-2)
    else:
        turned = torch.cat((out_first, out_second), dim=-1)
    # cos 1 and sin 0 would still change -0.0 and spread NaN within a pair: delta 0 is a copy.
    return torch.where((deltas == 0).unsqueeze(-1), k_r, turned.to(k_r.dtype))


def _rotate_fp8(bits: Tensor, deltas: Tensor, cos_sin: Tensor, interleaved: bool) -> Tensor:
    """Turn e4m3 keys given as uint8 bits [n, 64]; values beyond 448 saturate, NaN stays NaN."""
    x = bits.view(torch.float8_e4m3fn).float()
    turned = rotate_rows(x, deltas, cos_sin, interleaved).clamp(-_E4M3_MAX, _E4M3_MAX)
    quantised = turned.to(torch.float8_e4m3fn).view(torch.uint8)
    return torch.where((deltas == 0).unsqueeze(-1), bits, quantised)


def relocate_reference(
    layers: list[Tensor],
    source_slots: Tensor,
    target_slots: Tensor,
    deltas: Tensor,
    cos_sin: Tensor,
    interleaved: bool,
) -> None:
    """Plain torch on any device: the meaning of `relocate_rows`, layer by layer."""
    _check_slots(source_slots, target_slots, int(layers[0].shape[0]))
    check_delta_range(deltas, int(cos_sin.shape[0]))
    turn = _rotate_fp8 if layers[0].dtype in FP8_STORAGE else rotate_rows
    for layer in layers:
        rows = layer.view(torch.uint8) if layer.dtype in FP8_STORAGE else layer
        moved = rows[source_slots]
        k_r = moved[..., -ROPE_DIM:].reshape(-1, ROPE_DIM)
        turned = turn(k_r, deltas, cos_sin, interleaved)
        moved[..., -ROPE_DIM:] = turned.view(moved[..., -ROPE_DIM:].shape)
        rows[target_slots] = moved


def _relocate_fake(
    layers: list[Tensor],
    source_slots: Tensor,
    target_slots: Tensor,
    deltas: Tensor,
    cos_sin: Tensor,
    interleaved: bool,
) -> None:
    """Shapes only, for torch.compile: the op changes its layers and returns nothing."""


def check_delta_range(deltas: Tensor, max_positions: int) -> None:
    """Raise `DeltaOutOfRange` unless each of `deltas` is less than `max_positions` both ways."""
    if deltas.numel() == 0:
        return
    low, high = (int(edge) for edge in torch.aminmax(deltas))
    if low <= -max_positions or high >= max_positions:
        raise delta_error(low, high, max_positions)


def delta_error(low: int, high: int, max_positions: int) -> DeltaOutOfRange:
    """Return the error for deltas from `low` to `high`, of which one is out of range."""
    found = f"{low}" if low == high else f"deltas from {low} to {high}"
    return DeltaOutOfRange(
        f"{found}: the table of {max_positions} positions allows "
        f"{-(max_positions - 1)} to {max_positions - 1}"
    )


def _check_slots(source: Tensor, target: Tensor, slots: int) -> None:
    for name, index in (("source", source), ("target", target)):
        low, high = (int(edge) for edge in torch.aminmax(index))
        if low < 0 or high >= slots:
            bad = low if low < 0 else high
            raise InvalidSlots(f"{name} slot {bad}: the layers have slots 0 to {slots - 1}")
    distinct = torch.unique(target)
    if distinct.numel() != target.numel():
        raise OverlappingSlots("a target slot appears twice")
    both = distinct[torch.isin(distinct, source)]
    if both.numel():
        raise OverlappingSlots(f"slot {int(both[0])} is both a source and a target")


_OPS = torch.library.Library("irminsul", "FRAGMENT")  # type: ignore[no-untyped-call]
_OPS.define(  # type: ignore[no-untyped-call]
    "relocate_rows(Tensor(a!)[] layers, Tensor source_slots, Tensor target_slots, Tensor deltas, "
    "Tensor cos_sin, bool interleaved) -> ()"
)
_OPS.impl(  # type: ignore[no-untyped-call]
    "relocate_rows", relocate_reference, "CompositeExplicitAutograd"
)
torch.library.register_fake("irminsul::relocate_rows", _relocate_fake, lib=_OPS)
