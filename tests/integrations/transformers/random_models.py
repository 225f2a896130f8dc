"""Tiny random models of each supported architecture, with weights that keep activations alive."""

from functools import cache
from typing import Any

import torch
import transformers

VOCABULARY = 300
POSITIONS = 2048

YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": POSITIONS // 4,
    "mscale": 1.0,
    "mscale_all_dim": 0.707,
    "beta_fast": 32,
    "beta_slow": 1,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": POSITIONS // 4,
}
_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.15,
}
_LATENT: dict[str, Any] = {
    **_COMMON,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 32,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
}
_GQA: dict[str, Any] = {**_COMMON, "num_key_value_heads": 2}

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v3": ("DeepseekV3", {**_LATENT, "q_lora_rank": 48, "rope_parameters": YARN}),
    "deepseek_v3_halves": (
        "DeepseekV3",
        {**_LATENT, "q_lora_rank": None, "rope_interleave": False},
    ),
    "deepseek_v2": ("DeepseekV2", {**_LATENT, "q_lora_rank": None, "rope_parameters": YARN}),
    "llama": ("Llama", {**_GQA, "rope_parameters": LLAMA3}),
    "mistral": ("Mistral", {**_GQA, "sliding_window": None, "head_dim": 16}),
    "qwen2": ("Qwen2", _GQA),
    "qwen3": ("Qwen3", {**_GQA, "head_dim": 32}),
    "mha": ("Llama", {**_COMMON, "num_key_value_heads": 4}),
}
LATENT = ("deepseek_v3", "deepseek_v3_halves", "deepseek_v2")


@cache
def make(name: str, layers: int = 3, **changes: Any) -> Any:
    """A float32 model on the CPU, in evaluation mode; the last layer has experts."""
    kind, settings = CONFIGS[name]
    settings = {**settings, **changes, "num_hidden_layers": layers}
    if name in LATENT:
        settings["first_k_dense_replace"] = max(1, layers - 1)
    config = getattr(transformers, f"{kind}Config")(**settings)
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    return model.eval()


def random_tokens(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (length,), generator=generator).tolist()


@torch.inference_mode()
def plain_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    return model(torch.tensor([tokens]), use_cache=False).logits[0]


@torch.inference_mode()
def plain_generate(model: Any, tokens: list[int], count: int) -> list[int]:
    out = model.generate(
        torch.tensor([tokens]),
        attention_mask=torch.ones(1, len(tokens), dtype=torch.int64),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return out[0, len(tokens) :].tolist()
