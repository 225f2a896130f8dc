"""Tiers of a scheduler -> SGLang's calls hooked in its process.

Knows names in SGLang; decides nothing. Here and not where the other hooks are registered: without
tiers nothing of this exists. The cache is built before SGLang binds its weight updater's calls.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from irminsul.errors import HostMismatch

if TYPE_CHECKING:
    from irminsul.integrations.sglang.tiers.runtime import Tiers

_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler."
_ENTER = f"{_SCHEDULER}_add_request_to_queue"
_CHOOSE = f"{_SCHEDULER}_get_new_batch_prefill_raw"
_UPDATER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager."
_UPDATES = tuple(
    f"{_UPDATER}update_weights_from_{source}" for source in ("disk", "distributed", "tensor", "ipc")
)
# Newer versions update in sessions, in which a peer may write weights without any call in between.
_BEGIN, _END = "begin_weight_update", "end_weight_update"


def install(tiers: Tiers) -> None:
    """Put hooks on the scheduler's queue and on weight updates in this process.

    Raises
    ------
    HostMismatch
        SGLang did not apply a hook.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def entered(result: Any, scheduler: Any, request: Any, *_: Any, **__: Any) -> None:
        tiers.enter(request)

    def updates(original: Callable[..., Any], *args: Any, **kw: Any) -> Any:
        # Before the call: a flush, which it may make itself, ends what this begins.
        tiers.new_weights()
        return original(*args, **kw)

    def ends(original: Callable[..., Any], *args: Any, **kw: Any) -> Any:
        tiers.finish_weights()
        return original(*args, **kw)

    hooks = {_ENTER: (entered, HookType.AFTER), _CHOOSE: (tiers.pass_by, HookType.AROUND)}
    hooks |= dict.fromkeys(_UPDATES, (updates, HookType.AROUND))
    updater = pkgutil.resolve_name(_UPDATER.removesuffix("."))
    for name, around in ((_BEGIN, updates), (_END, ends)):
        if hasattr(updater, name):
            hooks[_UPDATER + name] = (around, HookType.AROUND)
    for target, (hook, kind) in hooks.items():
        HookRegistry.register(target, hook, kind)
    HookRegistry.apply_hooks()
    wanted = tuple(hooks)
    missing = [target for target in wanted if target not in HookRegistry._patched]
    if missing:
        raise HostMismatch(
            f"SGLang did not apply irminsul's hooks on {', '.join(missing)}; its log above says "
            "why. Unset IRMINSUL_HOST_BYTES and IRMINSUL_POOL_MASTER, or use another version."
        )
