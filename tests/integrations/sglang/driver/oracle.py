"""A checkpoint folder, token ids and donor rows -> what an MLA model computes, in plain torch.

Written from the model's definition (DeepSeek-V2, arXiv 2405.04434, section 2.1) in fp32, without
any of irminsul's or the engine's code: rotation, positions and holes are done here once more.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

ROPE = 64
LATENT = 512


class Oracle:
    """The model of a checkpoint folder."""

    def __init__(self, folder: str) -> None:
        self.config = json.loads((Path(folder) / "config.json").read_text())
        tensors = load_file(Path(folder) / "model.safetensors")
        self.weights = {name: tensor.float() for name, tensor in tensors.items()}
        self.frequencies, self.mscale, self.score_scale = _yarn(self.config)

    def prefill(
        self, tokens: Tensor, moved: dict[int, tuple[int, Tensor]] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute a prompt, taking the rows at `moved` positions as given.

        Parameters
        ----------
        tokens : int64 [n]
        moved
            Position -> (delta, donor rows [layers, 576] before rotation).

        Returns
        -------
        rows : float32 [layers, n, 576]
        logits : float32 [vocabulary], after the last token
        """
        moved = moved or {}
        holes = torch.tensor([p for p in range(len(tokens)) if p not in moved])
        hidden = self.weights["model.embed_tokens.weight"][tokens[holes]]
        all_rows = []
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}."
            normed = self._norm(hidden, prefix + "input_layernorm")
            rows = self._rows(prefix, normed, holes, len(tokens))
            for position, (delta, donor) in moved.items():
                row = donor[layer].float()
                rows[position, :LATENT] = row[:LATENT]
                rows[position, LATENT:] = self.turn(row[None, LATENT:], torch.tensor([delta]))[0]
            hidden = hidden + self._attend(prefix, normed, holes, rows)
            normed = self._norm(hidden, prefix + "post_attention_layernorm")
            hidden = hidden + self._mlp(prefix, normed)
            all_rows.append(rows)
        last = self._norm(hidden[-1:], "model.norm")
        return torch.stack(all_rows), (last @ self.weights["lm_head.weight"].T)[0]

    def turn(self, keys: Tensor, positions: Tensor) -> Tensor:
        """Rotate interleaved pairs of ``keys [n, 64]`` by `positions`, in float64."""
        angles = positions.double()[:, None] * self.frequencies
        even, odd = keys[:, 0::2].double(), keys[:, 1::2].double()
        cos, sin = angles.cos(), angles.sin()
        turned = torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1)
        return turned.flatten(1).float()

    def _rows(self, prefix: str, normed: Tensor, holes: Tensor, length: int) -> Tensor:
        projected = normed @ self.weights[prefix + "self_attn.kv_a_proj_with_mqa.weight"].T
        latent = self._norm(projected[:, :LATENT], prefix + "self_attn.kv_a_layernorm")
        rows = torch.zeros(length, LATENT + ROPE)
        rows[holes, :LATENT] = latent
        rows[holes, LATENT:] = self.turn(projected[:, LATENT:], holes) * self.mscale
        return rows

    def _attend(self, prefix: str, normed: Tensor, holes: Tensor, rows: Tensor) -> Tensor:
        heads, nope = self.config["num_attention_heads"], self.config["qk_nope_head_dim"]
        query = normed @ self.weights[prefix + "self_attn.q_proj.weight"].T
        query = query.view(len(holes), heads, nope + ROPE)
        expand = self.weights[prefix + "self_attn.kv_b_proj.weight"]
        expanded = (rows[:, :LATENT] @ expand.T).view(len(rows), heads, -1)
        scores = torch.einsum("qhd,khd->hqk", query[..., :nope], expanded[..., :nope])
        for head in range(heads):
            turned = self.turn(query[:, head, nope:], holes) * self.mscale
            scores[head] += turned @ rows[:, LATENT:].T
        hidden_from = torch.arange(len(rows))[None, :] > holes[:, None]
        scores = (scores * self.score_scale).masked_fill(hidden_from, -math.inf)
        values = torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), expanded[..., nope:])
        return values.flatten(1) @ self.weights[prefix + "self_attn.o_proj.weight"].T

    def _mlp(self, prefix: str, normed: Tensor) -> Tensor:
        gate = normed @ self.weights[prefix + "mlp.gate_proj.weight"].T
        up = normed @ self.weights[prefix + "mlp.up_proj.weight"].T
        return (torch.nn.functional.silu(gate) * up) @ self.weights[
            prefix + "mlp.down_proj.weight"
        ].T

    def _norm(self, hidden: Tensor, name: str) -> Tensor:
        scale = hidden.pow(2).mean(dim=-1, keepdim=True) + self.config["rms_norm_eps"]
        return hidden * scale.rsqrt() * self.weights[name + ".weight"]


def _yarn(config: dict[str, Any]) -> tuple[Tensor, float, float]:
    """Frequencies, the factor on cos and sin, and the factor on scores (YaRN, arXiv 2309.00071)."""
    scaling = config["rope_scaling"]
    base, factor = config["rope_theta"], scaling["factor"]
    original = scaling["original_max_position_embeddings"]
    exponents = torch.arange(0, ROPE, 2, dtype=torch.float64) / ROPE
    plain = base**-exponents

    def dimension(rotations: float) -> float:
        return ROPE * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(dimension(scaling["beta_fast"])), 0)
    high = min(math.ceil(dimension(scaling["beta_slow"])), ROPE - 1)
    ramp = ((torch.arange(ROPE // 2, dtype=torch.float64) - low) / max(high - low, 1e-3)).clamp(
        0, 1
    )
    frequencies = plain / factor * ramp + plain * (1 - ramp)

    def stretch(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1.0

    width = config["qk_nope_head_dim"] + ROPE
    all_dims = stretch(scaling["mscale_all_dim"])
    return frequencies, stretch(scaling["mscale"]) / all_dims, width**-0.5 * all_dims**2
