"""Published rotary configurations of MLA models -> the tables those models compute.

Written from the formulas (RoPE: arXiv 2104.09864; YaRN: arXiv 2309.00071), apart from the package,
so that the package is tested against something that it does not use.
"""

import math
from dataclasses import dataclass
from functools import cache

import torch

PAIRS = 32


@dataclass(frozen=True)
class Yarn:
    factor: float
    original: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 1.0


@dataclass(frozen=True)
class Rotary:
    """What a model's config.json says about the rotation of its main attention."""

    theta: float
    positions: int
    yarn: Yarn | None = None
    interleaved: bool = True


# config.json of each model on its hub page; Mistral's params.json spells YaRN in other words. That
# file of Mistral Large 3 (theta 10,000, factor 36, 8,192 original positions, nothing scaled) is
# repeated by NVIDIA TensorRT-LLM's tests of its Mistral config loader; Kimi-K2's factors, 32 and
# from 0905 on 64, by public inspections of its config.json.
MODELS = {
    "DeepSeek-V2-Lite": Rotary(1e4, 163_840, Yarn(40, 4096, mscale=0.707, mscale_all_dim=0.707)),
    "DeepSeek-V3 and R1": Rotary(1e4, 163_840, Yarn(40, 4096)),
    "Kimi-K2": Rotary(5e4, 131_072, Yarn(32, 4096, beta_fast=1)),
    "Kimi-K2-0905": Rotary(5e4, 262_144, Yarn(64, 4096, beta_fast=1)),
    "Moonlight": Rotary(5e4, 8_192),
    "JoyAI-LLM-Flash": Rotary(3.2e7, 131_072),
    "Mistral-Large-3": Rotary(1e4, 294_912, Yarn(36, 8192)),
    "GLM-5 main attention": Rotary(1e6, 202_752),
    # No published model uses these two; the code paths must hold all the same.
    "half-split": Rotary(1e4, 32_768, interleaved=False),
    "mscale 1.26": Rotary(1e4, 163_840, Yarn(40, 4096, mscale=0.707, mscale_all_dim=0.0)),
}


def inverse_frequencies(rotary: Rotary, dtype: torch.dtype) -> torch.Tensor:
    """Angle per position of each pair, [32]."""
    exponent = torch.arange(0, 2 * PAIRS, 2, dtype=dtype) / (2 * PAIRS)
    plain = 1.0 / rotary.theta**exponent
    if rotary.yarn is None:
        return plain
    yarn = rotary.yarn

    def pair_turning(times: float) -> float:
        turns = yarn.original / (times * 2 * math.pi)
        return 2 * PAIRS * math.log(turns) / (2 * math.log(rotary.theta))

    low = max(math.floor(pair_turning(yarn.beta_fast)), 0)
    high = min(math.ceil(pair_turning(yarn.beta_slow)), 2 * PAIRS - 1)
    width = high - low if high != low else 0.001
    ramp = ((torch.arange(PAIRS, dtype=dtype) - low) / width).clamp(0, 1)
    return plain / yarn.factor * ramp + plain * (1 - ramp)


def mscale(rotary: Rotary) -> float:
    """Factor that the model multiplies its cosines and sines with."""
    if rotary.yarn is None:
        return 1.0
    grow = 0.1 * math.log(rotary.yarn.factor)
    return (rotary.yarn.mscale * grow + 1.0) / (rotary.yarn.mscale_all_dim * grow + 1.0)


@cache
def model_cache(rotary: Rotary) -> torch.Tensor:
    """fp32 [positions, 64] as the engines build it: fp32 angles, scaled cosines | sines."""
    position = torch.arange(rotary.positions, dtype=torch.float32)
    angle = position[:, None] * inverse_frequencies(rotary, torch.float32)
    return torch.cat([angle.cos(), angle.sin()], dim=1) * mscale(rotary)


def exact_cache(rotary: Rotary) -> torch.Tensor:
    """fp32 [positions, 64], unscaled, from angles computed in float64."""
    position = torch.arange(rotary.positions, dtype=torch.float64)
    angle = position[:, None] * inverse_frequencies(rotary, torch.float64)
    return torch.cat([angle.cos(), angle.sin()], dim=1).float()


def turn(x: torch.Tensor, cos_sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """Apply rows of a cos/sin table to keys [..., 64] as one complex product per pair."""
    order = torch.arange(2 * PAIRS).view(PAIRS, 2)
    if not interleaved:
        order = torch.arange(2 * PAIRS).view(2, PAIRS).T
    cos_sin = cos_sin.to(x.dtype)
    pairs = torch.complex(x[..., order[:, 0]], x[..., order[:, 1]])
    pairs = pairs * torch.complex(cos_sin[..., :PAIRS], cos_sin[..., PAIRS:])
    out = torch.empty_like(x)
    out[..., order[:, 0]], out[..., order[:, 1]] = pairs.real, pairs.imag
    return out


def signed_rows(cos_sin: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """Rows of the table for deltas of both signs, as float64."""
    rows = cos_sin[delta.abs()].double()
    rows[..., PAIRS:] *= torch.where(delta < 0, -1.0, 1.0)[..., None]
    return rows


def ulps_at_pair_norm(got: torch.Tensor, want: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """Largest |got - want| in units of a bf16's last place at the norm of the number's pair."""
    shape = (*want.shape[:-1], PAIRS, 2) if interleaved else (*want.shape[:-1], 2, PAIRS)
    axis = -1 if interleaved else -2
    norm = want.double().view(shape).norm(dim=axis)
    ulp = 2.0 ** (norm.clamp_min(1e-30).log2().floor() - 7)
    error = (got.double() - want.double()).view(shape).abs().amax(dim=axis)
    return (error / ulp).amax()


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """||got - want|| / ||want|| over everything."""
    return float((got.double() - want.double()).norm() / want.double().norm())
