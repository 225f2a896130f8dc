"""SGLang as installed -> the attributes irminsul uses, checked, and one spelling for all versions.

The only file here that may branch on a version's shape. It asks what exists, never a number: SGLang
moves names inside 0.5.x.

``rows`` imports SGLang when it is there and works without it, for ``irminsul doctor``.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import pkgutil
from array import array
from dataclasses import dataclass
from typing import Any

RANGE = ">=0.5.16,<0.5.24"

# Dotted path below ``sglang.srt`` -> parameter names that irminsul passes or reads, in order.
# An empty tuple asks only that the attribute exists.
_CALLS: dict[str, tuple[str, ...]] = {
    "plugins.hook_registry.HookRegistry.register": ("target", "hook", "hook_type"),
    "mem_cache.registry.register_radix_cache_backend": ("name", "factory"),
    "mem_cache.registry.default_radix_cache_factory": ("ctx",),
    "managers.schedule_batch.ScheduleBatch.prepare_for_extend": ("self",),
    "managers.schedule_policy.PrefillAdder.add_one_req": ("self", "req"),
    "managers.schedule_policy.PrefillAdder.add_chunked_req": ("self", "req"),
    "managers.schedule_policy.PrefillAdder.budget_state": ("self",),
    "managers.schedule_policy.PrefillAdder.ceil_paged_tokens": ("self", "tokens"),
    "managers.schedule_policy.AddReqResult.NO_TOKEN": (),
    "managers.schedule_policy.AddReqResult.OTHER": (),
    "model_executor.forward_batch_info.ForwardBatch.init_new": ("batch", "model_runner"),
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
    "mem_cache.allocator.TokenToKVPoolAllocator": (),
    "mem_cache.allocator.PagedTokenToKVPoolAllocator": (),
    "models.deepseek_common.attention_backend_handler.AttentionBackendRegistry.register": (
        "backend_name",
        "handler_func",
    ),
    "models.deepseek_common.attention_backend_handler.AttentionBackendRegistry.get_handler": (
        "backend_name",
    ),
}

# Classes and the fields that irminsul reads or writes on their instances.
_FIELDS: dict[str, tuple[str, ...]] = {
    "managers.schedule_batch.ScheduleBatch": (
        "reqs",
        "forward_mode",
        "prefix_lens",
        "extend_lens",
        "extend_num_tokens",
        "out_cache_loc",
        "prefill_input_ids_cpu",
        "return_logprob",
    ),
    "model_executor.forward_batch_info.ForwardBatch": (
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
        "lora_ids",
        "rids",
    ),
    "layers.logits_processor.LogitsMetadata": ("next_token_logits_buffer",),
    "mem_cache.base_prefix_cache.MatchPrefixParams": ("key", "req"),
    "mem_cache.base_prefix_cache.InsertResult": ("prefix_len", "last_device_node"),
}

# Each group needs one of its members: the versions differ here.
_EITHER: tuple[tuple[str, ...], ...] = (
    (
        "mem_cache.radix_cache.RadixCache.checkpoint",
        "mem_cache.radix_cache.RadixCache.cache_unfinished_req",
    ),
)


@dataclass(frozen=True)
class Row:
    """One SGLang attribute that irminsul relies on."""

    target: str
    resolved: bool
    detail: str


def version() -> str | None:
    """Return the version of the installed SGLang, or None."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return None


def rows() -> list[Row]:
    """Check every attribute that irminsul uses; nothing is registered or changed.

    Returns
    -------
    list of Row
        ``detail`` says what is wrong where ``resolved`` is False. One row with the target
        ``sglang`` stands alone when SGLang cannot be imported.
    """
    if importlib.util.find_spec("sglang") is None:
        return [Row("sglang", False, f"not installed; irminsul works with sglang{RANGE}")]
    found = [_call_row(target, names) for target, names in _CALLS.items()]
    found += [_field_row(target, names) for target, names in _FIELDS.items()]
    found += [_either_row(targets) for targets in _EITHER]
    return found


def server_value(server_args: Any, name: str, default: Any = None) -> Any:
    """Return a server argument as SGLang resolved it, or `default` where it has none."""
    try:
        from sglang.srt.arg_groups.model_override_base import resolved_view
    except ImportError:
        return getattr(server_args, name, default)
    return getattr(resolved_view(server_args), name, default)


def extend_end(request: Any) -> int:
    """Return the position at which the request's current prefill round ends."""
    if hasattr(request, "extend_end"):
        return int(request.extend_end)
    return int(request.extend_range.end)


def prefix_length(request: Any) -> int:
    """Return the position at which the request's current prefill round begins."""
    if hasattr(request, "prefix_len"):
        return int(request.prefix_len)
    return len(request.prefix_indices)


def prompt_tokens(request: Any) -> array[int]:
    """Return all ids that the request prefills, over all rounds; SGLang's own array."""
    tokens: array[int] = request.full_untruncated_fill_ids
    return tokens


def pool_row(request: Any) -> int:
    """Return the request's row in ``req_to_token``."""
    held = getattr(request, "kv", None)
    row = getattr(held, "req_pool_idx", None)
    return int(request.req_pool_idx if row is None else row)


def _resolve(target: str) -> Any:
    return pkgutil.resolve_name("sglang.srt." + target)


def _call_row(target: str, wanted: tuple[str, ...]) -> Row:
    try:
        attribute = _resolve(target)
    except Exception as error:
        return Row(target, False, f"does not import: {type(error).__name__}: {error}")
    if not wanted:
        return Row(target, True, "")
    names = list(inspect.signature(inspect.unwrap(attribute)).parameters)
    # A bound classmethod shows no ``cls``; a hooked one, unwrapped, does.
    names = [name for name in names if name != "cls"]
    if names[: len(wanted)] == list(wanted):
        return Row(target, True, "")
    return Row(target, False, f"takes ({', '.join(names)}), irminsul needs ({', '.join(wanted)})")


def _field_row(target: str, wanted: tuple[str, ...]) -> Row:
    try:
        declared = _resolve(target)
    except Exception as error:
        return Row(target, False, f"does not import: {type(error).__name__}: {error}")
    known = set(getattr(declared, "__dataclass_fields__", ())) | set(dir(declared))
    missing = [name for name in wanted if name not in known]
    return Row(target, not missing, f"has no {', '.join(missing)}" if missing else "")


def _either_row(targets: tuple[str, ...]) -> Row:
    problems = [row for row in (_call_row(target, ()) for target in targets) if not row.resolved]
    resolved = len(problems) < len(targets)
    detail = "" if resolved else "; ".join(row.detail for row in problems)
    return Row(" or ".join(targets), resolved, detail)
