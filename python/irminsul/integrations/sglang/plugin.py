"""SGLang's plugin loader -> irminsul's cache backend and its hooks, registered.

Must stay cheap and must not import torch: SGLang calls it in every process, in use or not.

Nothing happens until a scheduler is started with ``--radix-cache-backend irminsul``: each hook
asks `runtime.current` first and returns at once while it is ``None``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from irminsul.integrations.sglang import plan_guard, runtime
from irminsul.integrations.sglang.admission.guarding import answered
from irminsul.integrations.sglang.attention import registration
from irminsul.integrations.sglang.tree import tenancy

logger = logging.getLogger(__name__)

BACKEND = "irminsul"


def register() -> None:
    """Register the cache backend and the hooks in this process; calling it again does nothing.

    Notes
    -----
    ``sglang.srt.plugins`` entry point. SGLang logs what it raises and goes on; a scheduler that
    asks for the backend then fails with "not registered".
    """
    from sglang.srt.mem_cache.registry import (
        register_radix_cache_backend,
        registered_radix_cache_backends,
    )
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if BACKEND in registered_radix_cache_backends():
        return
    registration.register()
    plan_guard.install()
    register_radix_cache_backend(BACKEND, _build)
    hooks = targets()
    for target in hooks:
        hook, kind = _HOOKS[target]
        HookRegistry.register(target, hook, HookType[kind])
    logger.debug("irminsul registered its radix cache backend and %d hooks", len(hooks))


def _build(context: Any) -> Any:
    from irminsul.integrations.sglang.start.build import build_cache

    return build_cache(context)


def _around_add_one(
    original: Callable[..., Any], adder: Any, request: Any, *args: Any, **kwargs: Any
) -> Any:
    if runtime.current is None:
        return original(adder, request, *args, **kwargs)
    admission = runtime.current.admission
    return answered(admission, admission.add_one, original, adder, request, *args, **kwargs)


def _around_add_chunked(
    original: Callable[..., Any], adder: Any, request: Any, *args: Any, **kwargs: Any
) -> Any:
    if runtime.current is None:
        return original(adder, request, *args, **kwargs)
    admission = runtime.current.admission
    return answered(admission, admission.add_chunked, original, adder, request, *args, **kwargs)


def _around_extra_key(original: Callable[..., Any], serving: Any, request: Any) -> Any:
    return tenancy.around_extra_key(original, serving, request, BACKEND)


def _after_prepare_for_extend(result: Any, batch: Any, *_: Any, **__: Any) -> None:
    if runtime.current is not None:
        runtime.current.plan(batch)


def _after_init_new(
    forward_batch: Any, cls: Any, batch: Any, runner: Any, *_: Any, **options: Any
) -> None:
    if runtime.current is not None:
        runtime.current.adopt(forward_batch, batch, runner)
        runtime.current.adopt_heads(
            forward_batch, batch, lambda part: cls.init_new(part, runner, **options)
        )


def _around_forward(
    original: Callable[..., Any], runner: Any, forward_batch: Any, *args: Any, **kwargs: Any
) -> Any:
    if runtime.current is None:
        return original(runner, forward_batch, *args, **kwargs)
    return runtime.current.forward(original, runner, forward_batch, *args, **kwargs)


def _around_logits_metadata(original: Callable[..., Any], cls: Any, forward_batch: Any) -> Any:
    if runtime.current is None:
        return original(cls, forward_batch)
    return original(cls, runtime.current.per_request(forward_batch))


_MANAGERS = "sglang.srt.managers"
_EXECUTOR = "sglang.srt.model_executor"

# Hooked function -> what answers it, and when.
_HOOKS: dict[str, tuple[Callable[..., Any], str]] = {
    f"{_MANAGERS}.schedule_policy.PrefillAdder.add_one_req": (_around_add_one, "AROUND"),
    f"{_MANAGERS}.schedule_policy.PrefillAdder.add_chunked_req": (_around_add_chunked, "AROUND"),
    f"{_MANAGERS}.schedule_batch.ScheduleBatch.prepare_for_extend": (
        _after_prepare_for_extend,
        "AFTER",
    ),
    f"{_EXECUTOR}.forward_batch_info.ForwardBatch.init_new": (_after_init_new, "AFTER"),
    f"{_EXECUTOR}.model_runner.ModelRunner.forward": (_around_forward, "AROUND"),
    "sglang.srt.layers.logits_processor.LogitsMetadata.from_forward_batch": (
        _around_logits_metadata,
        "AROUND",
    ),
    tenancy.TARGET: (_around_extra_key, "AROUND"),
}
TARGETS = tuple(target for target in _HOOKS if target != tenancy.TARGET)
"""Functions that are hooked in every SGLang."""


def targets() -> tuple[str, ...]:
    """Return the functions that must be hooked in this SGLang before reuse is safe."""
    return (*TARGETS, tenancy.TARGET) if tenancy.joins_salts() else TARGETS
