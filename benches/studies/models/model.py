"""Sizes -> a small DeepSeek-V3-type model whose KV row has the production width of 576 numbers.

Must not know tasks or training loops.

Four layers suffice for three hops: the first looks at the tokens just before, each further one can
follow one link. No experts, tied embeddings; transformers loads it as any DeepSeek-V3 checkpoint.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

ATTENTION = "study_sdpa"
MAX_POSITIONS = 16_384
PACKED = "model.safetensors.xz"


def config(
    vocabulary: int, *, hidden: int = 256, layers: int = 4, heads: int = 4, mlp: int = 192
) -> DeepseekV3Config:
    """Return the model's configuration; only `hidden`, `layers`, `heads` and `mlp` are ours."""
    return DeepseekV3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=mlp,
        moe_intermediate_size=mlp,
        num_hidden_layers=layers,
        first_k_dense_replace=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_rope_head_dim=64,
        qk_nope_head_dim=48,
        v_head_dim=48,
        n_routed_experts=8,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        initializer_range=0.02,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )


def causal_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend causally, all [batch, heads, tokens, ...]; V is padded so that fused kernels run."""
    padded = functional.pad(value, [0, query.shape[-1] - value.shape[-1]])
    out = functional.scaled_dot_product_attention(query, key, padded, is_causal=True, scale=scaling)
    return out[..., : value.shape[-1]].transpose(1, 2), None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, causal_attention)


def build(settings: DeepseekV3Config, seed: int, *, plain: bool = False) -> DeepseekV3ForCausalLM:
    """Make a model with weights drawn for training from scratch, in fp32.

    `plain` leaves out what `_look_back` and `_look_up` prepare.
    """
    torch.manual_seed(seed)
    settings._attn_implementation = ATTENTION
    model = DeepseekV3ForCausalLM(settings)
    for name, weight in model.named_parameters():
        if weight.ndim < 2:
            continue
        std = weight.shape[1] ** -0.5
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            std *= (
                1.0 if plain else 0.02
            )  # the residual stream begins as the embeddings, which have norm 1
        nn.init.normal_(weight, std=std)
    if plain:
        return model
    _look_back(model, settings)
    _look_up(model, settings)
    return model


@torch.no_grad()
def _look_back(model: DeepseekV3ForCausalLM, settings: DeepseekV3Config) -> None:
    """Let the first layer's heads begin by looking one, two and three tokens back.

    Every embedding gets one direction in common, from which the rotary parts of queries and keys
    are made; the phases of the queries turn the peak to the wanted distance. Training would find
    this too, but lookups cannot appear before it, and this is where runs differ by luck.
    """
    width = settings.hidden_size
    common = _common(width)
    embedding = model.model.embed_tokens.weight
    embedding -= torch.outer(embedding @ common, common)
    embedding.copy_(functional.normalize(embedding, dim=1) + 0.5 * common)
    first = model.model.layers[0].self_attn
    rotary, head = settings.qk_rope_head_dim, settings.qk_head_dim
    angle = 10_000.0 ** (-torch.arange(0, rotary, 2) / rotary)
    # Fast pairs decide between neighbours, slow ones keep far tokens out.
    size = torch.where(angle > 0.3, 5.0, 2.0) / (0.45 * width**0.5)
    keys = torch.stack([size, torch.zeros_like(size)], dim=1).flatten()
    first.kv_a_proj_with_mqa.weight[-rotary:] = torch.outer(keys, common)
    for index in range(settings.num_attention_heads):
        back = angle * (index % 3 + 1)
        turned = torch.stack([size * back.cos(), -size * back.sin()], dim=1).flatten()
        rows = slice((index + 1) * head - rotary, (index + 1) * head)
        first.q_proj.weight[rows] = torch.outer(turned, common)


@torch.no_grad()
def _look_up(model: DeepseekV3ForCausalLM, settings: DeepseekV3Config) -> None:
    """Let one head of every later layer begin by asking "where did this token stand before?".

    Its query reads the token itself; its key reads what the first layer's first head wrote: the
    token before. It copies what it finds. That is an induction head, which nearly every trained
    transformer has; here it is only spared the wait. How links are followed further, when the
    question comes or already when a fact is read, is left to training.
    """
    size, common = settings.qk_nope_head_dim, _common(settings.hidden_size)
    spread = torch.randn(settings.hidden_size, min(2 * size, settings.hidden_size - 1))
    basis = torch.linalg.qr(torch.cat([common[:, None], spread], dim=1))[0][:, 1:].T
    token, written = basis[:size], basis[-size:]  # [48, hidden] each, orthonormal
    for index, layer in enumerate(model.model.layers):
        attention = layer.self_attn
        latent = torch.linalg.pinv(attention.kv_a_proj_with_mqa.weight[: settings.kv_lora_rank])
        up = attention.kv_b_proj.weight  # head 0: [nope + value, 512]
        up[size : size + settings.v_head_dim] = token @ latent
        out = written if index == 0 else token
        attention.o_proj.weight[:, : settings.v_head_dim] = 0.12 * out.T
        if index:
            up[:size] = _SHARPNESS * written @ latent
            attention.q_proj.weight[:size] = _SHARPNESS * token
            attention.q_proj.weight[size : settings.qk_head_dim] *= 0.1


_SHARPNESS = 2.0


def _common(width: int) -> Tensor:
    """Direction that all embeddings share."""
    generator = torch.Generator().manual_seed(1)
    return functional.normalize(torch.randn(width, generator=generator), dim=0)


def save(model: DeepseekV3ForCausalLM, folder: Path) -> None:
    """Write config.json and the weights in bf16, the tied head left out."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = model.config.to_dict()
    settings.update(architectures=["DeepseekV3ForCausalLM"], dtype="bfloat16")
    (folder / "config.json").write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n")
    weights = {
        name: weight.detach().to("cpu", torch.bfloat16).contiguous()
        for name, weight in model.named_parameters()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def pack(folder: Path) -> None:
    """Compress the weights, by a third: that is how they are kept in the repository."""
    plain = folder / "model.safetensors"
    # Numbers of two bytes: told so, it packs 6 % smaller.
    way = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 3, "lp": 1, "pb": 1}
    (folder / PACKED).write_bytes(lzma.compress(plain.read_bytes(), filters=[way]))
    plain.unlink()


def load(folder: Path, dtype: torch.dtype = torch.float32) -> DeepseekV3ForCausalLM:
    """Read what `save` wrote, packed or not, ready for evaluation."""
    if not (folder / PACKED).exists():
        return DeepseekV3ForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    weights = safetensors.torch.load(lzma.decompress((folder / PACKED).read_bytes()))
    model = DeepseekV3ForCausalLM(DeepseekV3Config.from_pretrained(folder))
    missing, unknown = model.load_state_dict(weights, strict=False)
    if set(missing) - {"lm_head.weight"} or unknown:
        raise ValueError(f"{folder} lacks {missing} and holds {unknown} besides")
    return model.to(dtype).eval()
