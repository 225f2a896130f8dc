"""A model's rotary configuration -> how far moved keys are from what they should be.

Every delta of the model's table, both signs, in one call; sources anywhere that leaves the target
inside the table.
"""

import torch
from irminsul.rotation import RopeTable, check_relocations, relocate_rows
from rotary_models import (
    Rotary,
    model_cache,
    relative_error,
    signed_rows,
    turn,
    ulps_at_pair_norm,
)

PROMISED = 163_840
"""Positions below which the error against the model's own keys has a bar."""

Figure = tuple[str, float, str, str | None]


def figures_of(rotary: Rotary) -> list[Figure]:
    """Return (metric, value, unit, bar) for one model."""
    cache = model_cache(rotary).cuda()
    table = RopeTable.from_model_cache(cache, interleaved=rotary.interleaved)
    delta = torch.arange(-rotary.positions + 1, rotary.positions, device="cuda")
    source = _sources(delta, rotary.positions)
    fresh = torch.randn(delta.numel(), 64, device="cuda")
    stored = turn(fresh, cache[source], rotary.interleaved).bfloat16()
    moved, changed_bytes = _move(stored, delta, table)

    exact = turn(stored.double(), signed_rows(table.cos_sin, delta), rotary.interleaved)
    wanted = turn(fresh, cache[source + delta], rotary.interleaved)
    near = torch.maximum(source, source + delta) < PROMISED
    against = {"float64 rotation": (moved, exact)}
    against[f"model's key, positions < {PROMISED}"] = (moved[near], wanted[near])
    if not bool(near.all()):
        against["model's key, all positions"] = (moved, wanted)
    bars = {"float64 rotation": ("<= 1.7e-3", "<= 2")}
    bars[f"model's key, positions < {PROMISED}"] = ("<= 3.0e-3", None)
    figures: list[Figure] = []
    for name, (got, want) in against.items():
        of_norm, of_number = bars.get(name, (None, None))
        worst = float(ulps_at_pair_norm(got, want, rotary.interleaved))
        figures.append((f"relative L2, {name}", _short(relative_error(got, want)), "", of_norm))
        figures.append((f"worst number, {name}", _short(worst), "ulp", of_number))
    unlike = int((moved != stored)[delta == 0].sum())
    figures.append(("c_KV bytes that differ", changed_bytes, "bytes", "== 0"))
    figures.append(("numbers that differ at delta 0", unlike, "", "== 0"))
    return figures


def _sources(delta: torch.Tensor, positions: int) -> torch.Tensor:
    room = positions - delta.abs()
    first = (-delta).clamp_min(0)
    return first + (torch.rand(delta.numel(), device="cuda", dtype=torch.float64) * room).long()


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _move(stored: torch.Tensor, delta: torch.Tensor, table: RopeTable) -> tuple[torch.Tensor, int]:
    """Move keys through a buffer; return them and how many c_KV bytes came out changed."""
    rows = delta.numel()
    layer = torch.randn(2 * rows, 1, 576, device="cuda").bfloat16()
    layer[:rows, 0, 512:] = stored
    slots = torch.arange(rows, device="cuda")
    relocate_rows([layer], slots, slots + rows, delta, table)
    check_relocations()
    latent = layer[:, 0, :512].reshape(2, -1).view(torch.uint8)
    return layer[rows:, 0, 512:].clone(), int((latent[0] != latent[1]).sum())
