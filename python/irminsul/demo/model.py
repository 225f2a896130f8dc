"""A seed and a few sizes -> a folder with a random DeepSeek-V2-style MLA checkpoint.

Must not know any serving engine: it writes files that every loader of that architecture reads.

The weights are scaled so that activations keep unit variance through the network. A checkpoint of
default-initialised weights would hide errors: keys of magnitude 1e-6 make every comparison pass.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

KV_LORA_RANK = 512
QK_ROPE_HEAD_DIM = 64


@dataclass(frozen=True)
class TinyModel:
    """Sizes of a random MLA model whose KV row has the production width of 576 numbers.

    Parameters
    ----------
    vocab_size
        Number of token ids; 129,280 fits the DeepSeek tokenizer.
    layers
        Number of decoder layers, all of them dense (no experts).
    hidden_size, intermediate_size, heads
        Width of the residual stream and of the MLP, number of attention heads.
    nope_head_dim, value_head_dim
        Width per head of the key part without position, and of the value.
    context_length
        Largest number of positions; YaRN stretches ``context_length / rope_factor`` of them.
    rope_factor
        YaRN scaling factor.
    seed
        Seed of the weights; the same sizes and seed give the same bytes.

    Raises
    ------
    ValueError
        A size is not positive, or ``context_length`` is not a multiple of ``rope_factor``.
    """

    vocab_size: int = 512
    layers: int = 3
    hidden_size: int = 256
    intermediate_size: int = 256
    heads: int = 4
    nope_head_dim: int = 32
    value_head_dim: int = 32
    context_length: int = 16_384
    rope_factor: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name != "seed" and value < 1:
                raise ValueError(f"{name} is {value}, it must be at least 1")
        if self.context_length % self.rope_factor:
            raise ValueError(
                f"context_length {self.context_length} is not a multiple of "
                f"rope_factor {self.rope_factor}"
            )

    def config(self) -> dict[str, Any]:
        """Return the content of ``config.json``.

        Notes
        -----
        ``mscale`` and ``mscale_all_dim`` differ on purpose: the engine's cos/sin table then
        carries a factor other than one, which a rotation by a delta has to divide out.
        """
        return {
            **_FIXED_CONFIG,
            "vocab_size": self.vocab_size,
            "num_hidden_layers": self.layers,
            "first_k_dense_replace": self.layers,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "moe_intermediate_size": self.intermediate_size,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "qk_nope_head_dim": self.nope_head_dim,
            "v_head_dim": self.value_head_dim,
            "max_position_embeddings": self.context_length,
            "rope_scaling": {
                "type": "yarn",
                "factor": self.rope_factor,
                "original_max_position_embeddings": self.context_length // self.rope_factor,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": 1.0,
                "mscale_all_dim": 0.707,
            },
        }

    def write(self, folder: str | Path) -> Path:
        """Write ``config.json`` and ``model.safetensors`` into `folder` and return it."""
        from safetensors.torch import save_file

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config(), indent=2))
        save_file(dict(self._weights()), folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    def _weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        generator = torch.Generator().manual_seed(self.seed)

        def linear(rows: int, columns: int, variance: float) -> torch.Tensor:
            drawn = torch.randn(rows, columns, generator=generator)
            return (drawn * math.sqrt(variance)).to(torch.bfloat16)

        yield "model.embed_tokens.weight", linear(self.vocab_size, self.hidden_size, 1.0)
        for layer in range(self.layers):
            for name, (rows, columns) in self._layer_shapes().items():
                yield f"model.layers.{layer}.{name}.weight", linear(rows, columns, 1 / columns)
            for name, size in self._norms().items():
                yield f"model.layers.{layer}.{name}.weight", _ones(size)
        yield "model.norm.weight", _ones(self.hidden_size)
        yield "lm_head.weight", linear(self.vocab_size, self.hidden_size, 1 / self.hidden_size)

    def _layer_shapes(self) -> dict[str, tuple[int, int]]:
        hidden, mlp, heads = self.hidden_size, self.intermediate_size, self.heads
        return {
            "self_attn.q_proj": (heads * (self.nope_head_dim + QK_ROPE_HEAD_DIM), hidden),
            "self_attn.kv_a_proj_with_mqa": (KV_LORA_RANK + QK_ROPE_HEAD_DIM, hidden),
            "self_attn.kv_b_proj": (
                heads * (self.nope_head_dim + self.value_head_dim),
                KV_LORA_RANK,
            ),
            "self_attn.o_proj": (hidden, heads * self.value_head_dim),
            "mlp.gate_proj": (mlp, hidden),
            "mlp.up_proj": (mlp, hidden),
            "mlp.down_proj": (hidden, mlp),
        }

    def _norms(self) -> dict[str, int]:
        return {
            "input_layernorm": self.hidden_size,
            "post_attention_layernorm": self.hidden_size,
            "self_attn.kv_a_layernorm": KV_LORA_RANK,
        }


# Loaders validate the expert fields as integers even when no layer has experts.
_FIXED_CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "torch_dtype": "bfloat16",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "aux_loss_alpha": 0.001,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "kv_lora_rank": KV_LORA_RANK,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 2,
    "n_shared_experts": 1,
    "norm_topk_prob": False,
    "num_experts_per_tok": 1,
    "q_lora_rank": None,
    "qk_rope_head_dim": QK_ROPE_HEAD_DIM,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000,
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "greedy",
    "use_cache": True,
}


def _ones(size: int) -> torch.Tensor:
    return torch.ones(size, dtype=torch.bfloat16)
