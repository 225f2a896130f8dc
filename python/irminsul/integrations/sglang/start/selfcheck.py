"""A loaded model's rotary module -> the rotation table, proven against that very module.

Knows how SGLang's DeepSeek-style models hold their rotary module; must not know plans or trees.

A rotary geometry that is read wrongly still gives plausible answers. So the module computes keys
at a source and at a target position, the table turns the first into the second, and the engine
does not start when they disagree.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from irminsul.errors import HostMismatch, IrminsulError, Unsupported
from irminsul.rotation import ROPE_DIM, RopeTable, rotate

# Relative L2 error of a moved key against the key that the model computes at the target: two
# roundings to bf16, and an fp32 table that is off by up to 1.8e-3 from true angles far out.
TOLERANCE = 3.0e-3
_KEYS = 64


def rope_table(model: Any, device: torch.device) -> RopeTable:
    """Return the rotation of `model`, checked against the model.

    Parameters
    ----------
    model
        The loaded ``nn.Module``.
    device
        Where the KV pool lives.

    Raises
    ------
    Unsupported
        The model has no rotary MLA attention, or its rotation depends on more than the distance.
    HostMismatch
        Keys turned by the table differ from keys that the model computes.
    """
    rotary = find_rotary(model)
    try:
        table = RopeTable.from_model_cache(
            _angles(rotary).to(device), interleaved=not bool(rotary.is_neox_style)
        )
    except IrminsulError as error:
        raise Unsupported(f"the model's rotary positions cannot be moved: {error}") from error
    check(rotary, table, device)
    return table


def mla_layer(model: Any) -> Any:
    """Return the model's first MLA attention layer."""
    for module in model.modules():
        if hasattr(module, "kv_lora_rank") and hasattr(module, "rotary_emb"):
            return module
    raise Unsupported("the model has no MLA attention layer with rotary positions")


def find_rotary(model: Any) -> Any:
    """Return the rotary module of the model's first MLA attention layer."""
    rotary = mla_layer(model).rotary_emb
    if rotary is None:
        raise Unsupported("the model's MLA layers use no rotary positions (NoPE)")
    for name in ("cos_sin_cache", "is_neox_style", "_compute_cos_sin_cache"):
        if not hasattr(rotary, name):
            raise Unsupported(f"rotary module {type(rotary).__name__} has no {name}")
    return rotary


def check(rotary: Any, table: RopeTable, device: torch.device) -> float:
    """Compare moved keys with computed ones, near and far, in both directions.

    Returns
    -------
    float
        The largest relative L2 error that was seen.

    Raises
    ------
    HostMismatch
        It exceeds `TOLERANCE`.
    """
    generator = torch.Generator().manual_seed(0)
    keys = torch.randn(_KEYS, ROPE_DIM, generator=generator).to(device, torch.bfloat16)
    last = table.max_positions - 1
    worst = 0.0
    for source, target in ((0, 1), (17, 4), (5, last), (last, 0), (last // 2, last // 3)):
        moved = rotate(_computed(rotary, keys, source), target - source, table).float()
        computed = _computed(rotary, keys, target).float()
        error = float((moved - computed).norm() / computed.norm())
        worst = max(worst, error)
        if not error <= TOLERANCE:
            raise HostMismatch(
                f"keys moved from position {source} to {target} differ from the model's own by "
                f"{error:.2e} (allowed: {TOLERANCE:.1e}); this model's rotary positions are not "
                "what irminsul read, so it refuses to move rows"
            )
    return worst


def _angles(rotary: Any) -> Tensor:
    """Return the module's ``[cos | sin]`` in float32, positions that it was made for only.

    Two things happen to the module's own buffer: off the GPU it may be rounded to the model's
    dtype, and SGLang may lengthen it past the model's context by rows without YaRN's scaling.
    """
    source: Tensor = rotary._compute_cos_sin_cache()
    held: Tensor = rotary.cos_sin_cache
    if held.dtype != torch.float32:
        return source.to(torch.float32)
    return held[: len(source)]


@torch.inference_mode()
def _computed(rotary: Any, keys: Tensor, position: int) -> Tensor:
    positions = torch.full((len(keys),), position, dtype=torch.int64, device=keys.device)
    query = keys.clone().unsqueeze(1)
    _, turned = rotary(positions, query, keys.clone().unsqueeze(1))
    result: Tensor = turned.reshape(keys.shape)
    return result
