"""Engine configuration and requests -> the reasons why irminsul must not reuse rows there.

Knows features and why they are refused; must not know how reuse works.

At start a reason stops the scheduler, or hands over to SGLang's own cache with a warning
(``IRMINSUL_ON_UNSUPPORTED=stock``). Per request a reason means exact service: the request reuses
nothing and shares tree nodes with exact requests only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from irminsul.integrations.sglang.compat import (
    attention_backend,
    attention_groups,
    prompt_tokens,
    server_value,
)
from irminsul.integrations.sglang.tree import tenancy

# Extend paths that were read to write a batch's KV before reading any, and to take the absorbed
# form for it. A backend from elsewhere says so with ``accepts_virtual_rows = True``.
BACKENDS = ("triton", "flashinfer", "flashmla", "fa3", "cutlass_mla", "torch_native")
# Those that irminsul's own tests have run, its own with them; of others only the source was read.
RUN_BACKENDS = ("flashinfer", "fa3", "triton", "torch_native", "irminsul")

# Server argument -> the sentence; refused when the argument is set to something true.
_FLAGS: dict[str, str] = {
    "enable_hierarchical_cache": "HiCache loads rows from another stream: drop "
    "--enable-hierarchical-cache.",
    "enable_lmcache": "LMCache brings its own tree: drop --enable-lmcache.",
    "enable_flexkv": "FlexKV brings its own tree: drop --enable-flexkv.",
    "enable_unified_cache_external_linker": "an external cache linker needs SGLang's unified "
    "tree: drop it.",
    "enable_streaming_session": "streaming sessions keep rows outside the tree: drop "
    "--enable-streaming-session.",
    "enable_session_radix_cache": "the session radix cache is another tree: drop "
    "--enable-session-radix-cache.",
    "speculative_algorithm": "with speculative decoding the draft model would miss the moved "
    "tokens: drop --speculative-algorithm.",
    "enable_two_batch_overlap": "two-batch overlap splits a batch by request, not by row: drop "
    "--enable-two-batch-overlap.",
    "enable_pdmux": "split prefill (PD multiplexing) runs layers outside the forward hook: drop "
    "--enable-pdmux.",
    "enable_deterministic_inference": "moved rows are not bit-equal to computed ones, which "
    "deterministic inference promises: drop --enable-deterministic-inference.",
    "enable_unified_memory": "the unified pool's slot ids are virtual: drop "
    "--enable-unified-memory.",
    "enable_hisparse": "hierarchical sparse attention reads other rows than the pool's: drop "
    "--enable-hisparse.",
    "enable_prefill_cp": "prefill context parallelism splits positions over ranks: drop it.",
    "enable_mis": "multi-item scoring masks by position in the batch: drop --enable-mis.",
    "dllm_algorithm": "diffusion language models have no causal KV rows to reuse.",
    "is_embedding": "an embedding model needs the hidden state of every token: drop "
    "--is-embedding.",
    "enable_return_hidden_states": "hidden states of moved tokens do not exist: drop "
    "--enable-return-hidden-states.",
}

_SIZES: dict[str, str] = {
    "pp_size": "pipeline parallelism is not supported",
    "dcp_size": "decode context parallelism splits positions over ranks",
    "attn_cp_size": "context parallelism splits positions over ranks",
}


def start_reasons(context: Any) -> Iterator[str]:
    """Yield one sentence for every reason to refuse this engine.

    Parameters
    ----------
    context
        SGLang's ``TreeCacheBuildContext``.
    """
    arguments = context.server_args
    if context.disable_radix_cache or context.params.disable:
        yield "--disable-radix-cache leaves no tree to reuse from: drop one of the two flags."
    if context.is_hybrid_swa:
        yield "the model has sliding-window layers, whose rows are not kept."
    if context.is_hybrid_ssm:
        yield "the model has recurrent (linear attention) layers, whose state cannot be moved."
    for name, sentence in _FLAGS.items():
        if server_value(arguments, name):
            yield sentence
    for name, sentence in _SIZES.items():
        size = server_value(arguments, name, 1)
        if size is not None and size > 1:
            yield f"{sentence}: --{name.replace('_', '-')} is {size}."
    if server_value(arguments, "disaggregation_mode", "null") not in (None, "null"):
        yield "PD disaggregation is not verified: drop --disaggregation-mode."
    if tenancy.joins_salts() and (server_value(arguments, "tokenizer_worker_num") or 1) > 1:
        yield (
            "this SGLang joins cache_salt and extra_key where a hook does not reach: drop "
            "--tokenizer-worker-num."
        )
    yield from _model_reasons(context)
    yield from _pool_reasons(context)
    yield from _backend_reasons(context)


def request_reason(request: Any) -> str | None:
    """Return why `request` must be served exactly, or None. Constant over its life.

    Moved rows have no hidden state and no logits, and ids that stand for images or for given
    embeddings do not say what the rows contain.
    """
    if request.multimodal_inputs is not None:
        return "multimodal"
    if request.input_embeds is not None or request.positional_embed_overrides is not None:
        return "embeddings"
    if request.return_hidden_states:
        return "hidden_states"
    if request.return_logprob and 0 <= request.logprob_start_len < len(request.origin_input_ids):
        return "prompt_logprobs"
    for name in ("return_routed_experts", "return_indexer_topk", "return_pooled_hidden_states"):
        if getattr(request, name, False):
            return name.removeprefix("return_")
    if getattr(request, "token_type_ids", None) is not None:
        return "token_types"
    if getattr(request, "session", None) is not None:
        return "session"
    # Scores of items are read at positions of the whole prompt.
    for name in ("token_indices_to_pool", "multi_item_delimiter_indices"):
        if getattr(request, name, None) is not None:
            return "scoring"
    return None


def round_reason(request: Any) -> str | None:
    """Return why a batch that `request` joins now must stay as it is, or None.

    What `batch_reason` will say of it: a request that was retracted prefills its own answer again,
    and SGLang takes the logprobs of that as it takes a prompt's.
    """
    reason = request_reason(request)
    if reason is None and request.return_logprob and request.logprob_start_len >= 0:
        inside = request.logprob_start_len < len(prompt_tokens(request))
        return "prompt_logprobs" if inside else None
    return reason


def batch_reason(batch: Any) -> str | None:
    """Return why the lengths of `batch`'s requests must stay, or None.

    Results that come token by token are cut by the lengths that SGLang keeps, so one such request
    keeps all of the batch as it is.
    """
    if any(getattr(request, "return_hidden_states", False) for request in batch.reqs):
        return "hidden_states"
    if any(request.multimodal_inputs is not None for request in batch.reqs):
        return "multimodal"
    if any(request.input_embeds is not None for request in batch.reqs):
        return "embeddings"
    starts = batch.extend_logprob_start_lens or []
    if batch.return_logprob and list(starts) != list(batch.extend_lens):
        return "prompt_logprobs"
    return None


def _model_reasons(context: Any) -> Iterator[str]:
    from sglang.srt.configs.model_config import AttentionArch

    if context.model_config.attention_arch != AttentionArch.MLA:
        yield "the model does not use Multi-Head Latent Attention (MLA): its keys carry position."
    if getattr(context, "is_dsa", False):
        yield "the model uses sparse attention (DSA), whose indexer keys carry position too."
    if not getattr(context.model_config, "is_generation", True):
        yield "the model does not generate text."


def _pool_reasons(context: Any) -> Iterator[str]:
    import torch
    from sglang.srt.mem_cache.allocator import (
        PagedTokenToKVPoolAllocator,
        TokenToKVPoolAllocator,
    )
    from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool

    allocator = context.params.token_to_kv_pool_allocator
    if type(allocator) not in (TokenToKVPoolAllocator, PagedTokenToKVPoolAllocator):
        yield f"the slot allocator is {type(allocator).__name__}, whose slot ids are not rows."
        return
    pool = allocator.get_kvcache()
    if type(pool) is not MLATokenToKVPool:
        yield f"the KV pool is {type(pool).__name__}, not the plain MLA pool."
        return
    if pool.use_dsa:
        yield "the KV pool stores sparse attention's rows (DSA)."
    if pool.store_dtype not in (torch.bfloat16, torch.float16, torch.float32):
        yield f"KV rows of {pool.dtype} are not supported: use --kv-cache-dtype auto."
    if pool.qk_rope_head_dim != 64 or pool.kv_lora_rank != 512:
        yield (
            f"KV rows are {pool.kv_lora_rank} + {pool.qk_rope_head_dim} numbers; 512 + 64 are "
            "supported."
        )
    if pool.layer_num != context.model_config.num_hidden_layers:
        yield "this process holds only a part of the model's layers."


def _backend_reasons(context: Any) -> Iterator[str]:
    arguments = context.server_args
    name = attention_backend(arguments, "prefill")
    backend = context.tp_worker.model_runner.attn_backend
    if name not in BACKENDS and not getattr(type(backend), "accepts_virtual_rows", False):
        yield f"attention backend {name!r} is not verified: use one of {', '.join(BACKENDS)}."
    if name == "flashmla" and server_value(arguments, "enable_mixed_chunk"):
        yield "flashmla takes its decode path for mixed batches: drop --enable-mixed-chunk."
    graphs = server_value(arguments, "cuda_graph_config")
    prefill = getattr(getattr(graphs, "prefill", None), "backend", None)
    if prefill == "tc_piecewise":
        yield (
            "the tc_piecewise prefill graph compiles the logits of a batch in: use "
            "--cuda-graph-backend-prefill breakable or disabled."
        )
    if prefill == "full" and attention_groups(arguments) > 1:
        yield (
            "data-parallel ranks choose a full prefill graph by requests, not by rows: use "
            "--cuda-graph-backend-prefill breakable or disabled."
        )
