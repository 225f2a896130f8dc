"""Names -> config.json contents of published models, for engines that fill in random weights.

Must not know engines. Dimensions are those of each model's card; what is not the published value is
said beside it. Vocabularies are cut to 32,768 ids, since no study looks at what is generated.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VOCABULARY = 32_768
POSITIONS = 65_536

_COMMON: dict[str, Any] = {
    "torch_dtype": "bfloat16",
    "vocab_size": VOCABULARY,
    "max_position_embeddings": POSITIONS,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.02,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    # Llama-3.1-8B.
    "GQA": {
        **_COMMON,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rope_theta": 500_000.0,
        "attention_bias": False,
        "mlp_bias": False,
    },
    # Qwen1.5-7B: as many KV heads as query heads.
    "MHA": {
        **_COMMON,
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "rope_theta": 1_000_000.0,
        "use_sliding_window": False,
    },
    # DeepSeek-V2-Lite.
    "MLA": {
        **_COMMON,
        "architectures": ["DeepseekV2ForCausalLM"],
        "max_position_embeddings": 163_840,
        "model_type": "deepseek_v2",
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "norm_topk_prob": False,
        "scoring_func": "softmax",
        "routed_scaling_factor": 1.0,
        "rope_theta": 10_000.0,
        "rope_scaling": {
            "type": "yarn",
            "factor": 40,
            "original_max_position_embeddings": 4096,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
        },
        "attention_bias": False,
        "aux_loss_alpha": 0.001,
        "seq_aux": True,
    },
    # Nemotron-H-8B: 24 Mamba2 layers, 4 attention layers, 24 MLPs.
    "Mamba2 hybrid": {
        **_COMMON,
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "hidden_size": 4096,
        "intermediate_size": 21504,
        "num_hidden_layers": 52,
        "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "attention_head_dim": 128,
        "mlp_hidden_act": "relu2",
        "ssm_state_size": 128,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "conv_kernel": 4,
        "chunk_size": 128,
        "expand": 2,
        "layer_norm_epsilon": 1e-5,
    },
    # Qwen3-Next-80B-A3B with 24 of its 48 layers, so that it fits one GPU in bfloat16.
    "GDN hybrid": {
        **_COMMON,
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "hidden_size": 2048,
        "intermediate_size": 5120,
        "num_hidden_layers": 24,
        "full_attention_interval": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "partial_rotary_factor": 0.25,
        "rope_theta": 10_000_000.0,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "decoder_sparse_step": 1,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "norm_topk_prob": True,
    },
    # Kimi-Linear-48B-A3B: 20 KDA layers, 7 MLA layers without RoPE.
    "KDA hybrid": {
        **_COMMON,
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "moe_intermediate_size": 1024,
        "num_hidden_layers": 27,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": 72,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "mla_use_nope": True,
        "num_experts": 256,
        "num_experts_per_token": 8,
        "num_shared_experts": 1,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid",
        "num_expert_group": 1,
        "topk_group": 1,
        "use_grouped_topk": True,
        "routed_scaling_factor": 2.446,
        "rope_theta": 10_000.0,
        "linear_attn_config": {
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
            "kda_layers": [n for n in range(1, 27) if n % 4],
            "head_dim": 128,
            "num_heads": 32,
            "short_conv_kernel_size": 4,
        },
    },
}


def write(name: str, folder: Path) -> Path:
    """Write an architecture's config.json and return its folder."""
    target = folder / name.replace(" ", "_")
    target.mkdir(parents=True, exist_ok=True)
    (target / "config.json").write_text(json.dumps(ARCHITECTURES[name], indent=1))
    return target
