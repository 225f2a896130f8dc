"""SGLang's cache-building context -> a checked irminsul cache with live hooks, or a refusal.

Knows the order of the start-up checks; each check lives in a file of its own.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from typing import Any

from irminsul import ChunkParams, Policy, Registry, __version__, native
from irminsul.errors import HostMismatch, Unsupported
from irminsul.integrations.sglang import compat, plan_guard, plugin, runtime, settings
from irminsul.integrations.sglang.admission.costs import Costs
from irminsul.integrations.sglang.agreement import Agreement
from irminsul.integrations.sglang.attention import registration
from irminsul.integrations.sglang.batch import absorb
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.settings import Settings
from irminsul.integrations.sglang.share import start as share
from irminsul.integrations.sglang.spans import Limits
from irminsul.integrations.sglang.start import refuse, selfcheck
from irminsul.rotation import RopeTable

logger = logging.getLogger(__name__)


def build_cache(context: Any) -> Any:
    """Return the radix cache for ``--radix-cache-backend irminsul``.

    Parameters
    ----------
    context
        SGLang's ``TreeCacheBuildContext``; model and KV pool exist already.

    Raises
    ------
    Unsupported, HostMismatch, InvalidParams
        Reuse could be wrong here; one sentence says why and what to do. With
        ``IRMINSUL_ON_UNSUPPORTED=stock`` the first two give SGLang's own cache instead.
    """
    options = settings.load()
    cache: Any = None
    error: Unsupported | HostMismatch | None = None
    try:
        check_host()
        check_context(context)
        cache = _build(context, options)
    except (Unsupported, HostMismatch) as refusal:
        error = refusal
    # Every rank gets here, so that none waits for another that serves without irminsul.
    if not Agreement.of(context).all_of(error is None) and error is None:
        error = Unsupported("another rank of this engine was refused; its log says why.")
    if error is None:
        return cache
    runtime.uninstall()
    if options.on_unsupported != "stock":
        raise error
    return _stock_cache(context, error)


def _stock_cache(context: Any, error: Exception) -> Any:
    from sglang.srt.mem_cache.registry import default_radix_cache_factory

    logger.warning("irminsul is off and SGLang's own cache serves: %s", error)
    return default_radix_cache_factory(context)


def check_host() -> None:
    """Raise `HostMismatch` unless every attribute exists and every hook is in place."""
    wrong = [row for row in compat.rows() if not row.resolved]
    if wrong:
        listed = "; ".join(f"{row.target} {row.detail}" for row in wrong)
        raise HostMismatch(
            f"sglang {compat.version()} is not one that irminsul can work with: {listed}. "
            f"Install sglang{compat.RANGE}, or drop --radix-cache-backend irminsul."
        )
    from sglang.srt.plugins.hook_registry import HookRegistry

    missing = [target for target in plugin.targets() if target not in HookRegistry._patched]
    if missing:
        raise HostMismatch(
            f"SGLang did not apply irminsul's hooks on {', '.join(missing)}; its log above says "
            "why. Check SGLANG_PLUGINS, or drop --radix-cache-backend irminsul."
        )


def check_context(context: Any) -> None:
    """Raise `Unsupported` with every reason why this engine must not reuse rows."""
    reasons = list(refuse.start_reasons(context))
    if reasons:
        raise Unsupported("irminsul cannot serve this engine: " + " Also, ".join(reasons))


def _build(context: Any, options: Settings) -> Any:
    from irminsul.integrations.sglang.hooks import Hooks

    pool = context.params.token_to_kv_pool_allocator.get_kvcache()
    table = selfcheck.rope_table(context.tp_worker.model_runner.model, pool.kv_buffer[0].device)
    policy = Policy(**settings.policy_overrides(options))
    registry = Registry(
        options.capacity_tokens or pool.size + pool.page_size,
        params=ChunkParams(**settings.chunk_overrides(options)),
        policy=policy,
    )
    metrics = _metrics(context, options)
    cache = _tree(context, options)(
        context.params, registry, _identity(context, pool, table), options, metrics
    )
    if options.reuse == "share":
        share.connect(cache, context, options, metrics)
    _add_tiers(context, cache, table, options, metrics, policy)
    limits, agreement = _limits(context, options, policy, table), Agreement.of(context)
    costs = _costs(context, pool, options)
    hooks = Hooks(cache, pool, table, limits, options, metrics, agreement, costs)
    absorb.install()
    runtime.install(hooks)
    _announce(context, pool, table, options)
    _warn_of_slow_moves(pool.kv_buffer[0])
    plan_guard.warn(context.server_args, options)
    return cache


def _limits(context: Any, options: Settings, policy: Policy, table: RopeTable) -> Limits:
    requests = int(context.params.req_to_token_pool.size)
    return Limits(
        rows=min(options.max_rows or requests, requests),
        row_tokens=options.max_row_tokens,
        min_span=policy.min_span,
        positions=table.max_positions,
        forward_tokens=_forward_tokens(context),
    )


def _forward_tokens(context: Any) -> int:
    """Return the chunk budget; 0 where a batch must run in one forward.

    Ranks of attention data parallelism forward in step, and adapters are prepared for the forward
    batch that was made last.
    """
    arguments = context.server_args
    if compat.attention_groups(arguments) > 1 or compat.server_value(arguments, "enable_lora"):
        return 0
    return max(0, compat.server_value(arguments, "chunked_prefill_size", 0) or 0)


def _tree(context: Any, options: Settings) -> Any:
    """Return the class of the tree."""
    if options.reuse == "share":
        share.check(context, options)
        from irminsul.integrations.sglang.share.cache import SharingRadixCache

        return SharingRadixCache
    from irminsul.integrations.sglang.tree.cache import IrminsulRadixCache

    return IrminsulRadixCache


def _add_tiers(
    context: Any,
    cache: Any,
    table: RopeTable,
    options: Settings,
    metrics: Metrics,
    policy: Policy,
) -> None:
    """Give `cache` what `options` ask for beyond the KV pool."""
    if not (options.host_bytes or options.pool_master):
        return
    _check_tiers(context)
    from irminsul.integrations.sglang.tiers.install import install
    from irminsul.integrations.sglang.tiers.runtime import Tiers

    cache.tiers = Tiers(
        cache,
        context.tp_worker.model_runner.model,
        context.params.token_to_kv_pool_allocator.get_kvcache(),
        table,
        options,
        metrics,
        params=ChunkParams(**settings.chunk_overrides(options)),
        policy=policy,
        agreement=Agreement.of(context),
    )
    install(cache.tiers)


def _check_tiers(context: Any) -> None:
    """Raise `Unsupported` where memory may be taken away under a copy, which would be a fault."""
    if compat.server_value(context.server_args, "enable_memory_saver", False):
        raise Unsupported(
            "rows are copied while nothing runs, when the memory saver may release them: unset "
            "IRMINSUL_HOST_BYTES and IRMINSUL_POOL_MASTER, or drop --enable-memory-saver."
        )


def _costs(context: Any, pool: Any, options: Settings) -> Costs | None:
    """Return what a prefill costs on a GPU; on a CPU, where no rate is known, None."""
    if not pool.kv_buffer[0].is_cuda:
        return None
    arguments = context.server_args
    ranks = int(compat.server_value(arguments, "tp_size", 1))
    ranks = max(1, ranks // compat.attention_groups(arguments))
    prefill = compat.attention_backend(arguments, "prefill")
    decompresses = prefill in absorb.DECOMPRESSING
    if prefill == registration.NAME:
        decompresses = registration.decompresses() and options.reuse == "copy"
    # It says when SGLang decompresses keys.
    attention = selfcheck.mla_layer(context.tp_worker.model_runner.model)
    if getattr(attention, "flashinfer_mla_disable_ragged", False):
        decompresses = decompresses and prefill not in ("flashinfer", "flashmla")
    threshold = getattr(attention, "chunked_prefix_cache_threshold", None)
    if getattr(attention, "disable_chunked_prefix_cache", False):
        threshold = sys.maxsize
    sizes = {} if threshold is None else {"threshold": int(threshold)}
    text = context.model_config.hf_text_config
    return Costs.of_model(text, ranks, decompresses=decompresses, **sizes)


def _identity(context: Any, pool: Any, table: RopeTable) -> dict[str, str]:
    model = context.model_config
    revision = compat.server_value(context.server_args, "revision") or ""
    layout = f"mla-{pool.kv_lora_rank}+{pool.qk_rope_head_dim}-{pool.dtype}"
    pairing = "interleaved" if table.interleaved else "half-split"
    return {
        "model": f"{model.model_path}@{revision}",
        "kv_layout": layout,
        "rope": f"{pairing}-{table.max_positions}",
    }


def _metrics(context: Any, options: Settings) -> Metrics:
    arguments = context.server_args
    name = compat.server_value(arguments, "served_model_name") or context.model_config.model_path
    labels = {"model_name": str(name), "tp_rank": str(context.tp_rank)}
    return Metrics(
        options.log_interval, prometheus=bool(context.params.enable_metrics), labels=labels
    )


def _announce(context: Any, pool: Any, table: RopeTable, options: Settings) -> None:
    backend = compat.attention_backend(context.server_args, "prefill")
    ranks = Agreement.of(context).ranks
    logger.info(
        "irminsul %s is on: sglang %s, attention %s%s, %d layers of %s rows, rope %s to %d "
        "positions, pool of %d tokens, %s, mode %s%s",
        __version__,
        compat.version(),
        backend,
        "" if backend in refuse.RUN_BACKENDS else " (its source was read, it was not run)",
        pool.layer_num,
        str(pool.dtype).removeprefix("torch."),
        "interleaved" if table.interleaved else "half-split",
        table.max_positions,
        pool.size,
        f"{ranks} ranks agree on every plan" if ranks > 1 else "1 rank",
        options.mode,
        _changed(options),
    )


def _warn_of_slow_moves(rows: Any) -> None:
    """Say when torch moves the rows of a GPU: costs are reckoned with the kernel's speed."""
    if not rows.is_cuda or native.supports_device(rows.device.index):
        return
    logger.warning(
        "irminsul moves rows by torch here, which takes milliseconds a batch: %s. See `irminsul "
        "doctor`.",
        native.unavailable_reason() or "its CUDA library has no kernels for this GPU",
    )


def _changed(options: Settings) -> str:
    """Return the settings that differ from their defaults, for the banner."""
    changed = [
        f"{field.name}={value}"
        for field in dataclasses.fields(options)
        if (value := getattr(options, field.name)) != field.default and field.name != "mode"
    ]
    return "; " + " ".join(changed) if changed else ""
