"""No tiers configured -> calls that do nothing, so that callers need not ask.

Must not import torch or SGLang.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from irminsul.integrations.sglang.spans import BatchPlan, Limits, Window

Call = Callable[..., Any]


class NoTiers:
    """Nothing beyond the GPU pool: every call does nothing."""

    enabled = False

    def fill(self, window: Window, limits: Limits) -> None:
        """Add what host memory can serve to the spans of `window`."""

    def meet(self, window: Window, limits: Limits) -> None:
        """Leave `window` what every rank has; collective."""

    def copy(self, plan: BatchPlan) -> None:
        """Write the rows that `plan` takes from host memory."""

    def wrote(self, request: Any, leaf: Any, root: Any, trusted: bool = True) -> None:
        """Note what a request has put in the tree."""

    def reset(self) -> None:
        """Forget everything: the tree was emptied."""

    def enter(self, request: Any) -> None:
        """Note a request that has entered the waiting queue."""

    def pass_by(self, original: Call, scheduler: Any, *args: Any, **kw: Any) -> Any:
        """Let the scheduler choose a prefill batch."""
        return original(scheduler, *args, **kw)

    def timing(self, forward_batch: Any) -> AbstractContextManager[None]:
        """Measure a forward."""
        return nullcontext()
