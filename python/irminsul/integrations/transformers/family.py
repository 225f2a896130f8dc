"""A transformers model -> what its KV rows look like, or a refusal that says why.

Must not know caches, plans or batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from irminsul.errors import InvalidParams, Unsupported
from irminsul.rotation import RopeTable

__all__ = ["Family", "describe"]

LATENT_TYPES = ("deepseek_v2", "deepseek_v3")
WHOLE_KEY_TYPES = ("llama", "mistral", "qwen2", "qwen3")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True, eq=False)
class Family:
    """What the engine must know of a model.

    Attributes
    ----------
    latent : bool
        True when a row is ``[c_KV | k_r]``; False when it is whole keys and values of all KV heads.
    attentions : list of nn.Module
        The attention module of every layer.
    num_heads, num_kv_heads, head_dim : int
        Sizes of one layer; the KV heads of a latent model are of no interest.
    angles : Tensor, float32, [max_positions, rotary_dim]
        ``[cos | sin]`` by position, without mscale.
    mscale : float
        Factor that YaRN puts on rotated queries and keys.
    interleaved : bool
        Whether rotary pairs are stored as ``(2i, 2i + 1)``.
    """

    name: str
    latent: bool
    attentions: list[nn.Module]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    angles: Tensor
    mscale: float
    interleaved: bool
    dtype: torch.dtype
    device: torch.device

    @property
    def max_positions(self) -> int:
        """Positions 0 to ``max_positions - 1`` exist."""
        return int(self.angles.shape[0])

    def table(self) -> RopeTable:
        """Rotations of `k_r`; only for latent models."""
        return RopeTable(self.angles, self.interleaved)


def describe(model: Any) -> Family:
    """Read a causal language model's layout.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        In evaluation mode, on one device, in bfloat16, float16 or float32.

    Returns
    -------
    Family

    Raises
    ------
    Unsupported
        Another architecture, row layout, rotary type, sliding window, quantised weights or a model
        that is spread over devices.
    InvalidParams
        The model is in training mode.
    """
    config = model.config
    name = str(getattr(config, "model_type", type(model).__name__))
    if name not in LATENT_TYPES + WHOLE_KEY_TYPES:
        raise Unsupported(
            f"models of type {name!r} are not supported; supported are "
            f"{', '.join(LATENT_TYPES + WHOLE_KEY_TYPES)}"
        )
    if model.training:
        raise InvalidParams("the model is in training mode; call model.eval() first")
    latent = name in LATENT_TYPES
    attentions = [layer.self_attn for layer in model.model.layers]
    _check_window(config)
    dtype, device = _place(model)
    rotary = model.model.rotary_emb
    _check_rope(rotary)
    interleaved = latent and bool(getattr(config, "rope_interleave", True))
    if latent:
        _check_latent(config, attentions, dtype)
    head_dim = int(config.qk_rope_head_dim if latent else attentions[0].head_dim)
    _check_width(rotary, head_dim)
    return Family(
        name=name,
        latent=latent,
        attentions=attentions,
        num_heads=int(config.num_attention_heads),
        num_kv_heads=int(config.num_key_value_heads),
        head_dim=head_dim,
        angles=_angles(rotary, int(config.max_position_embeddings), device),
        mscale=float(rotary.attention_scaling),
        interleaved=interleaved,
        dtype=dtype,
        device=device,
    )


def _check_window(config: Any) -> None:
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None)
    listed = getattr(config, "layer_types", None) is not None
    if kinds != {"full_attention"} or (window is not None and not listed):
        raise Unsupported(
            f"sliding-window attention (window {window}, layers {sorted(kinds)}) is not supported: "
            "rows outside the window would have to be forgotten"
        )


def _place(model: Any) -> tuple[torch.dtype, torch.device]:
    devices = {weight.device for weight in model.parameters()}
    if len(devices) != 1 or next(iter(devices)).type == "meta":
        names = sorted(map(str, devices))
        raise Unsupported(f"the model must lie on one device, its weights are on {names}")
    dtype = model.model.embed_tokens.weight.dtype
    if dtype not in _DTYPES:
        raise Unsupported(f"the model is {dtype}; bfloat16, float16 and float32 are supported")
    return dtype, next(iter(devices))


def _check_rope(rotary: Any) -> None:
    kind = str(getattr(rotary, "rope_type", "unknown"))
    if kind not in ROPE_TYPES:
        raise Unsupported(
            f"rotary embeddings of type {kind!r} cannot be moved by one rotation, because their "
            f"frequencies depend on the length or on more than a position; supported are "
            f"{', '.join(ROPE_TYPES)}"
        )


def _check_width(rotary: Any, head_dim: int) -> None:
    width = 2 * int(rotary.inv_freq.numel())
    if width != head_dim:
        raise Unsupported(f"{width} of {head_dim} numbers of a key are rotated; it must be all")


def _check_latent(config: Any, attentions: list[Any], dtype: torch.dtype) -> None:
    sizes = (int(config.kv_lora_rank), int(config.qk_rope_head_dim))
    if sizes != (512, 64):
        raise Unsupported(
            f"kv_lora_rank {sizes[0]} and qk_rope_head_dim {sizes[1]}: only rows of 512 + 64 "
            "numbers are supported"
        )
    if not 1 <= int(config.num_attention_heads) <= 128:
        raise Unsupported(f"{config.num_attention_heads} attention heads; 1 to 128 are supported")
    weight = attentions[0].kv_b_proj.weight
    if weight.dtype != dtype:
        raise Unsupported(
            f"kv_b_proj is {weight.dtype} and the model {dtype}: quantised weights cannot be "
            "absorbed; load the model unquantised"
        )


def _angles(rotary: Any, max_positions: int, device: torch.device) -> Tensor:
    """Angles as the model computes them: fp32 products of position and frequency."""
    frequency = rotary.inv_freq.detach().to(device, torch.float32)
    position = torch.arange(max_positions, device=device, dtype=torch.float32)
    angle = position[:, None] * frequency[None, :]
    return torch.cat([angle.cos(), angle.sin()], dim=1).contiguous()
