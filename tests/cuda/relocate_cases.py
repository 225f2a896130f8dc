"""Layers, slots and deltas for the tests of relocation, and what their rows must be afterwards."""

import torch
from irminsul._rotation_reference import relocate_reference
from irminsul.rotation import RopeTable, check_relocations, relocate_rows
from rotary_models import Rotary, exact_cache

POSITIONS = 4096
FORMATS = {
    "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "bytes": torch.uint8,
}


def table(*, interleaved: bool = True) -> RopeTable:
    return RopeTable(exact_cache(Rotary(1e4, POSITIONS)).cuda(), interleaved)


def pool(
    layers: int, slots: int, dtype: torch.dtype = torch.bfloat16, pad: int = 0, shift: int = 0
) -> list[torch.Tensor]:
    """Layers of random rows; ``pad`` numbers between rows, ``shift`` numbers before the first."""
    width = 576 + pad
    draw = torch.Generator("cuda").manual_seed(layers + slots)
    out = []
    for _ in range(layers):
        store = torch.randn(slots * width + shift, device="cuda", generator=draw)
        # torch has no uint8 randn; the bytes of e4m3 numbers are what such a pool holds.
        kept = store.to(torch.float8_e4m3fn if dtype == torch.uint8 else dtype).view(dtype)
        out.append(kept[shift:].view(slots, 1, width)[..., :576])
    return out


def job(
    rows: int, slots: int, seed: int = 0, delta_dtype: torch.dtype = torch.int64
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Disjoint source and target slots; sources repeat, deltas have both signs and zeros."""
    draw = torch.Generator("cuda").manual_seed(seed)
    order = torch.randperm(slots, device="cuda", generator=draw)
    target, free = order[:rows], order[rows:]
    pick = torch.randint(0, free.numel(), (rows,), device="cuda", generator=draw)
    delta = torch.randint(-POSITIONS + 1, POSITIONS, (rows,), device="cuda", generator=draw)
    delta[::5] = 0
    return free[pick], target, delta.to(delta_dtype)


def bits(layer: torch.Tensor) -> torch.Tensor:
    return layer.view(torch.int16 if layer.dtype == torch.bfloat16 else torch.uint8)


def twin(layer: torch.Tensor) -> torch.Tensor:
    """Copy a layer with everything between its rows."""
    store = layer.untyped_storage().clone()
    place = (layer.storage_offset(), layer.size(), layer.stride())
    return torch.empty(0, dtype=layer.dtype, device="cuda").set_(store, *place)


def memory(layer: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device="cuda").set_(layer.untyped_storage())


def assert_same_as_reference(
    layers: list[torch.Tensor],
    source: torch.Tensor,
    target: torch.Tensor,
    delta: torch.Tensor,
    rope: RopeTable,
) -> None:
    """Move with both and compare every byte, those between the rows too."""
    expected = [twin(layer) for layer in layers]
    relocate_reference(expected, source, target, delta, rope.cos_sin, rope.interleaved)
    relocate_rows(layers, source, target, delta, rope, allow_fp8=True)
    check_relocations()
    for layer, wanted in zip(layers, expected, strict=True):
        assert torch.equal(memory(layer), memory(wanted))
