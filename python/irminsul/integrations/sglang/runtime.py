"""One process -> the reuse state that this process's scheduler and model runner share.

Must not import torch or SGLang: the hooks read it on every call, also when irminsul is not in use.

SGLang runs a scheduler and its model runner in one process, on one thread, so plain module state
is enough; `current` stays ``None`` in every process that built no irminsul cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from irminsul.integrations.sglang.hooks import Hooks

current: Hooks | None = None


def install(hooks: Hooks) -> None:
    """Make `hooks` answer this process's engine calls; the cache built last wins."""
    global current
    current = hooks


def uninstall() -> None:
    """Return every hook to doing nothing."""
    global current
    current = None
