"""The table of the SGLang attributes that irminsul relies on, by dotted path below ``sglang.srt``.

Must not import anything: `compat` compares it with the installed SGLang when a server starts,
and the tests with the sources of every release of the supported range.
"""

from __future__ import annotations

# Functions -> the parameter names that irminsul passes or reads, in order. An empty tuple asks
# only that the attribute exists.
CALLS: dict[str, tuple[str, ...]] = {
    "plugins.hook_registry.HookRegistry.register": ("target", "hook", "hook_type"),
    "plugins.hook_registry.HookRegistry._patched": (),
    "plugins.hook_registry.HookRegistry.apply_hooks": (),
    "plugins.hook_registry.HookType.AFTER": (),
    "plugins.hook_registry.HookType.AROUND": (),
    "mem_cache.registry.register_radix_cache_backend": ("name", "factory"),
    "mem_cache.registry.registered_radix_cache_backends": (),
    "mem_cache.registry.default_radix_cache_factory": ("ctx",),
    "managers.schedule_batch.ScheduleBatch.prepare_for_extend": ("self",),
    "managers.schedule_policy.PrefillAdder.add_one_req": ("self", "req"),
    "managers.schedule_policy.PrefillAdder.add_chunked_req": ("self", "req"),
    "managers.schedule_policy.PrefillAdder.budget_state": ("self",),
    "managers.schedule_policy.PrefillAdder.ceil_paged_tokens": ("self", "tokens"),
    "managers.schedule_policy.AddReqResult.CONTINUE": (),
    "managers.schedule_policy.AddReqResult.NO_TOKEN": (),
    "managers.scheduler.Scheduler._add_request_to_queue": ("self", "req"),
    "managers.scheduler.Scheduler._get_new_batch_prefill_raw": ("self",),
    "managers.schedule_policy.AddReqResult.OTHER": (),
    "model_executor.forward_batch_info.ForwardBatch.init_new": ("batch", "model_runner"),
    "model_executor.forward_batch_info.ForwardMode.is_extend": ("self",),
    "model_executor.model_runner.ModelRunner.forward": ("self", "forward_batch"),
    "layers.logits_processor.LogitsMetadata.from_forward_batch": ("forward_batch",),
    "mem_cache.radix_cache.RadixCache.match_prefix": ("self", "params"),
    "mem_cache.radix_cache.RadixCache.insert": ("self", "params"),
    "mem_cache.radix_cache.RadixCache.reset": ("self",),
    "mem_cache.radix_cache.RadixCache.inc_lock_ref": ("self", "node"),
    "mem_cache.radix_cache.RadixCache.dec_lock_ref": ("self", "node"),
    "mem_cache.radix_cache.RadixCache._split_node": ("self", "key", "child", "split_len"),
    "mem_cache.radix_cache.RadixCache._delete_leaf": ("self", "node"),
    "mem_cache.radix_cache.RadixKey.raw_token_ids": ("self",),
    "mem_cache.memory_pool.MLATokenToKVPool": (),
    "mem_cache.allocator.TokenToKVPoolAllocator.get_kvcache": ("self",),
    "mem_cache.allocator.PagedTokenToKVPoolAllocator.get_kvcache": ("self",),
    "configs.model_config.AttentionArch.MLA": (),
    "layers.attention.attention_registry.ATTENTION_BACKENDS": (),
    "layers.attention.attention_registry.register_attention_backend": ("name",),
    "server_args.add_attention_backend_choices": (),
    "server_args.ATTENTION_BACKEND_CHOICES": (),
    "models.deepseek_common.attention_backend_handler.AttentionBackendRegistry._handlers": (),
    "models.deepseek_common.attention_backend_handler.AttentionBackendRegistry.register": (
        "backend_name",
        "handler_func",
    ),
    "models.deepseek_common.attention_backend_handler.AttentionBackendRegistry.get_handler": (
        "backend_name",
    ),
    "models.deepseek_common.attention_forward_methods.forward_methods.AttnForwardMethod.MLA": (),
    "models.deepseek_common.attention_forward_methods.forward_methods.AttnForwardMethod.MHA": (),
    "models.deepseek_common.attention_forward_methods.forward_methods."
    "AttnForwardMethod.MHA_ONE_SHOT": (),
    "models.deepseek_common.attention_forward_methods.forward_methods."
    "AttnForwardMethod.MHA_CHUNKED_KV": (),
}

_UPDATER = "managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager."

# The same, needed only where an engine uses them: irminsul serves without them.
OPTIONAL: dict[str, tuple[str, ...]] = {
    "layers.attention.flashinfer_mla_backend.fast_mla_decode_plan": ("self", "qo_indptr_cpu"),
    # irminsul's own attention
    "layers.attention.base_attn_backend.AttentionBackend": (),
    "layers.attention.flashinfer_mla_backend.FlashInferMLAAttnBackend.__init__": (
        "self",
        "model_runner",
    ),
    "mem_cache.memory_pool.KVWriteLoc": (),
    "models.deepseek_common.attention_forward_methods.forward_mla.DeepseekMLAForwardMixin."
    "_fuse_rope_for_trtllm_mla": ("self", "forward_batch"),
    "models.deepseek_common.utils.FORWARD_ABSORB_CORE_ATTENTION_BACKENDS": (),
    "server_args.CHUNKED_PREFIX_CACHE_SUPPORTED_ATTENTION_BACKENDS": (),
    "server_args.add_chunked_prefix_cache_attention_backend": (),
    "utils.is_flashinfer_available": (),
    # borrowed pages
    "mem_cache.base_prefix_cache.InsertParams": (),
    "mem_cache.radix_cache.RadixCache.protected_size": ("self",),
    # rows beyond the pool
    _UPDATER + "update_weights_from_disk": (),
    _UPDATER + "update_weights_from_distributed": (),
    _UPDATER + "update_weights_from_ipc": (),
    _UPDATER + "update_weights_from_tensor": (),
}

# Classes -> what irminsul reads or writes on their instances: declared there, or assigned to self.
FIELDS: dict[str, tuple[str, ...]] = {
    "managers.schedule_batch.Req": (
        "rid",
        "origin_input_ids",
        "output_ids",
        "full_untruncated_fill_ids",
        "sampling_params",
        "extra_key",
        "lora_id",
        "cached_tokens",
        "cached_tokens_device",
        "retracted_stain",
        "return_logprob",
        "logprob_start_len",
        "return_hidden_states",
        "multimodal_inputs",
        "input_embeds",
        "positional_embed_overrides",
    ),
    "managers.schedule_batch.ScheduleBatch": (
        "reqs",
        "forward_mode",
        "prefix_lens",
        "extend_lens",
        "extend_num_tokens",
        "extend_logprob_start_lens",
        "out_cache_loc",
        "prefill_input_ids_cpu",
        "return_logprob",
    ),
    "managers.schedule_policy.PrefillAdder": (
        "can_run_list",
        "running_batch",
        "page_size",
        "rem_chunk_tokens",
        "rem_input_tokens",
        "rem_total_tokens",
        "log_hit_tokens",
        "log_input_tokens",
        "reprocessed_log_hit_tokens",
        "reprocessed_log_input_tokens",
        "waiting_queue_len",
        "new_chunked_req",
    ),
    "model_executor.forward_batch_info.ForwardBatch": (
        "forward_mode",
        "batch_size",
        "req_pool_indices",
        "seq_lens",
        "seq_lens_cpu",
        "seq_lens_sum",
        "orig_seq_lens",
        "positions",
        "extend_prefix_lens",
        "extend_prefix_lens_cpu",
        "extend_seq_lens",
        "extend_seq_lens_cpu",
        "extend_start_loc",
        "extend_logprob_start_lens_cpu",
        "next_token_logits_buffer",
        "lora_ids",
        "rids",
    ),
    "model_executor.model_runner.ModelRunner": ("model", "attn_backend", "is_draft_worker"),
    "layers.logits_processor.LogitsMetadata": ("next_token_logits_buffer",),
    "mem_cache.base_prefix_cache.MatchPrefixParams": ("key", "req"),
    "mem_cache.base_prefix_cache.InsertResult": ("prefix_len", "last_device_node"),
    "mem_cache.cache_init_params.CacheInitParams": (
        "disable",
        "enable_metrics",
        "req_to_token_pool",
        "token_to_kv_pool_allocator",
        "attn_tp_cache_group",
    ),
    "mem_cache.memory_pool.MLATokenToKVPool": (
        "kv_buffer",
        "kv_lora_rank",
        "qk_rope_head_dim",
        "dtype",
        "store_dtype",
        "layer_num",
        "size",
        "page_size",
        "use_dsa",
    ),
    "mem_cache.memory_pool.ReqToTokenPool": ("req_to_token", "size"),
    "mem_cache.radix_cache.RadixCache": (
        "root_node",
        "req_to_token_pool",
        "token_to_kv_pool_allocator",
        "_empty_match_result",
    ),
    "mem_cache.radix_cache.RadixKey": ("token_ids", "extra_key", "is_bigram", "limit"),
    "mem_cache.radix_cache.TreeNode": ("parent", "key", "value", "last_access_time"),
    "mem_cache.registry.TreeCacheBuildContext": (
        "server_args",
        "params",
        "is_hybrid_swa",
        "is_hybrid_ssm",
        "disable_radix_cache",
        "tp_worker",
        "model_config",
        "tp_rank",
    ),
    "configs.model_config.ModelConfig": (
        "attention_arch",
        "hf_text_config",
        "model_path",
        "num_hidden_layers",
    ),
    "sampling.sampling_params.SamplingParams": ("custom_params",),
}

# Each group needs one of its members: the versions differ here.
EITHER: tuple[tuple[str, ...], ...] = (
    # How the rows of a request that ends get into the tree.
    (
        "mem_cache.radix_cache.RadixCache.checkpoint",
        "mem_cache.radix_cache.RadixCache.insert_req",
        "mem_cache.radix_cache.RadixCache.cache_finished_req",
    ),
    (
        "mem_cache.radix_cache.RadixCache.checkpoint",
        "mem_cache.radix_cache.RadixCache.cache_unfinished_req",
    ),
    # How borrowed pages go back.
    (
        "mem_cache.allocator.PagedTokenToKVPoolAllocator.free_page_ids",
        "mem_cache.allocator.PagedTokenToKVPoolAllocator.free_group",
    ),
    ("managers.schedule_batch.Req.extend_end", "managers.schedule_batch.Req.extend_range"),
    ("managers.schedule_batch.Req.prefix_len", "managers.schedule_batch.Req.prefix_indices"),
    ("managers.schedule_batch.Req.kv", "managers.schedule_batch.Req.req_pool_idx"),
)
