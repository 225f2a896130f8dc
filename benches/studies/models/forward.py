"""Token ids -> hidden states after every layer of the small model, in few kernels, for training.

Must not know tasks. The same function of the same weights as transformers' forward pass, which a
test compares; that one launches three times as many kernels and returns no early states in bf16.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import DeepseekV3ForCausalLM


class Forward:
    """Runs the decoder in `dtype`, weights and gradients staying in fp32."""

    def __init__(self, model: DeepseekV3ForCausalLM, dtype: torch.dtype) -> None:
        self.model, self.dtype, self.config = model, dtype, model.config
        self._angles: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, tokens: Tensor) -> list[Tensor]:
        """Return the residual stream after each layer, [rows, length, hidden], not yet normed."""
        stream = functional.embedding(tokens, self.model.model.embed_tokens.weight)
        stream = stream.to(self.dtype)
        turn = self._rope(tokens.shape[1], tokens.device)
        states = []
        for layer in self.model.model.layers:
            normed = self._norm(layer.input_layernorm, stream)
            stream = stream + self._attend(layer.self_attn, normed, turn)
            stream = self._feed(layer, stream)
            states.append(stream)
        return states

    def logits(self, state: Tensor) -> Tensor:
        """Return scores of the next token from a state, [..., vocabulary], fp32."""
        normed = self._norm(self.model.model.norm, state)
        return functional.linear(normed, self.model.lm_head.weight.to(self.dtype)).float()

    def _feed(self, layer: nn.Module, stream: Tensor) -> Tensor:
        """Return the stream behind a layer's feed-forward part."""
        normed = self._norm(layer.post_attention_layernorm, stream)
        gate = functional.silu(self._linear(layer.mlp.gate_proj, normed))
        up = self._linear(layer.mlp.up_proj, normed)
        return stream + self._linear(layer.mlp.down_proj, gate * up)

    def _linear(self, layer: nn.Linear, values: Tensor) -> Tensor:
        return functional.linear(values, layer.weight.to(self.dtype))

    def _norm(self, norm: nn.Module, values: Tensor) -> Tensor:
        weight = norm.weight.to(self.dtype)
        return functional.rms_norm(values, weight.shape, weight, norm.variance_epsilon)

    def _attend(self, layer: nn.Module, values: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        c, (rows, length) = self.config, values.shape[:2]
        query = self._linear(layer.q_proj, values).view(rows, length, -1, c.qk_head_dim)
        latent, shared = self._linear(layer.kv_a_proj_with_mqa, values).split(
            [c.kv_lora_rank, c.qk_rope_head_dim], dim=-1
        )
        expanded = self._linear(layer.kv_b_proj, self._norm(layer.kv_a_layernorm, latent))
        key, value = expanded.view(rows, length, c.num_attention_heads, -1).split(
            [c.qk_nope_head_dim, c.v_head_dim], dim=-1
        )
        plain, turned = query.split([c.qk_nope_head_dim, c.qk_rope_head_dim], dim=-1)
        query = torch.cat([plain, _turn(turned, turn)], dim=-1)
        shared = _turn(shared[:, :, None], turn).expand(-1, -1, c.num_attention_heads, -1)
        key = torch.cat([key, shared], dim=-1)
        value = functional.pad(value, [0, c.qk_head_dim - c.v_head_dim])
        out = functional.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2),
            is_causal=True, scale=c.qk_head_dim**-0.5,
        )  # fmt: skip
        out = out[..., : c.v_head_dim].transpose(1, 2).flatten(2)
        return self._linear(layer.o_proj, out)

    def _rope(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        if length not in self._angles:
            size = self.config.qk_rope_head_dim
            base = self.config.rope_parameters["rope_theta"]
            rate = base ** (-torch.arange(0, size, 2, device=device, dtype=torch.float64) / size)
            angle = torch.arange(length, device=device, dtype=torch.float64)[:, None] * rate
            pair = angle.cos().to(self.dtype), angle.sin().to(self.dtype)
            self._angles[length] = (pair[0][:, None], pair[1][:, None])
        return self._angles[length]


def _turn(values: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate neighbouring pairs by the position's angles; pairs end up apart, in q and k alike."""
    cos, sin = turn
    left, right = values[..., 0::2], values[..., 1::2]
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)
