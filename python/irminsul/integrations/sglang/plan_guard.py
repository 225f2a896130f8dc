"""SGLang's plan of a flashinfer decode step -> the same, once the copy of the last plan has ended.

Knows one function of SGLang's flashinfer MLA backend; must not know batches, trees or reuse.

``fast_mla_decode_plan``, which plans every replay of a decode graph, writes the plan into pinned
memory of the captured size and has it copied to the device. Nothing waits for that copy before the
next plan of this size rewrites the memory. Under overlap scheduling the host is up to a step ahead
of the device; where the device falls behind, because other processes take it away, a step runs with
the plan of the next one and reads keys of other requests (figures in docs/sglang.md). Neither reuse
nor irminsul's streams are part of it. Where the copy has ended, two calls of CUDA are all it costs.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable
from typing import Any

from irminsul.integrations.sglang import compat, runtime
from irminsul.integrations.sglang.compat import ORIGINAL
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.settings import Settings

logger = logging.getLogger(__name__)

BACKEND = "flashinfer"
TARGET = "layers.attention.flashinfer_mla_backend.fast_mla_decode_plan"
_COPIED = "irminsul_plan_copied"


class PlanGuard:
    """Keeps each plan of a wrapper until its copy has ended.

    Parameters
    ----------
    metrics
        Counts the plans that had to wait: each would have been overwritten too early.
    """

    def __init__(self, metrics: Metrics) -> None:
        import torch  # SGLang loads this file in every process, also where nothing is served

        self._cuda: Any = torch.cuda
        self._metrics = metrics

    def plan(self, original: Callable[..., Any], wrapper: Any, *args: Any, **kw: Any) -> Any:
        """Around ``fast_mla_decode_plan``, whose first parameter is flashinfer's wrapper."""
        if self._cuda.is_current_stream_capturing():
            return original(wrapper, *args, **kw)
        copied = getattr(wrapper, _COPIED, None)
        if copied is None:
            copied = self._cuda.Event()
            setattr(wrapper, _COPIED, copied)
        elif not copied.query():
            self._tell()
            copied.synchronize()
        result = original(wrapper, *args, **kw)
        copied.record()
        return result

    def _tell(self) -> None:
        self._metrics.add("late_plans", 1)
        if self._metrics.due("late plans", 60.0):
            count = self._metrics.counts["late_plans"]
            logger.info("irminsul: %d decode plans had to wait for the copy of the last one", count)


def install() -> None:
    """Have SGLang's flashinfer backend guarded where one is made; again does nothing.

    Notes
    -----
    Graphs are captured, and take the function with them, before the cache backend is built. So it
    is wrapped when the attention backend is made, and asks at each call whether irminsul serves.
    """
    from sglang.srt.layers.attention import attention_registry

    create = attention_registry.ATTENTION_BACKENDS.get(BACKEND)
    if create is None or hasattr(create, ORIGINAL):
        return

    @functools.wraps(create)
    def guarded(runner: Any) -> Any:
        if getattr(runner, "use_mla_backend", False):
            guard()
        return create(runner)

    setattr(guarded, ORIGINAL, create)
    attention_registry.register_attention_backend(BACKEND)(guarded)


def guard() -> None:
    """Wrap the function in its module; an SGLang that plans otherwise is left alone."""
    module, name = _place()
    original: Any = getattr(module, name, None)
    if hasattr(original, ORIGINAL) or not compat.optional_row(TARGET).resolved:
        return

    @functools.wraps(original)
    def plan(wrapper: Any, *args: Any, **kw: Any) -> Any:
        hooks = runtime.current
        found = None if hooks is None else hooks.plan_guard
        if found is None:
            return original(wrapper, *args, **kw)
        return found.plan(original, wrapper, *args, **kw)

    setattr(plan, ORIGINAL, original)
    setattr(module, name, plan)


def warn(server_args: Any, settings: Settings) -> None:
    """Say when flashinfer plans decode steps and the guard that was asked for is not on."""
    backend = compat.attention_backend(server_args, "decode")
    if backend != BACKEND or not settings.plan_guard:
        return
    row = compat.optional_row(TARGET)
    module, name = _place()
    if not hasattr(getattr(module, name, None), ORIGINAL):
        logger.warning(
            "irminsul does not guard SGLang's decode plans here (%s %s): under overlap scheduling "
            "a plan may overwrite the last one, see docs/sglang.md",
            TARGET,
            row.detail or "is not wrapped",
        )


def _place() -> tuple[Any, str]:
    """Return the module of the function, None where there is none, and the function's name."""
    module, _, name = TARGET.rpartition(".")
    try:
        return importlib.import_module("sglang.srt." + module), name
    except ImportError:
        return None, name
