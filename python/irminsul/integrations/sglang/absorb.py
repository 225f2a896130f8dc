"""SGLang's choice of MLA form per batch -> the absorbed form for batches with holes.

Knows the dispatch registry; must not know plans beyond "one is running".

The decompressed forms expand every row's whole prefix in each layer. Rows of one request repeat
that prefix, so their cost grows with the number of holes; the absorbed form reads the pool as is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from irminsul.integrations.sglang import runtime

# Backends whose absorbed extend is SGLang's own path for short prefixes.
_ABSORBING = ("triton", "flashinfer", "flashmla", "fa3", "cutlass_mla")

_MARK = "irminsul_original"


def install() -> None:
    """Wrap the handlers of backends that can absorb; calling it again does nothing."""
    from sglang.srt.models.deepseek_common.attention_backend_handler import (
        AttentionBackendRegistry,
    )

    for name in _ABSORBING:
        handler = AttentionBackendRegistry._handlers.get(name)
        if handler is not None and not hasattr(handler, _MARK):
            AttentionBackendRegistry.register(name, _absorbing(handler))


def _absorbing(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import (
        AttnForwardMethod,
    )

    decompressing = (
        AttnForwardMethod.MHA,
        AttnForwardMethod.MHA_ONE_SHOT,
        AttnForwardMethod.MHA_CHUNKED_KV,
    )

    def choose(attention: Any, forward_batch: Any) -> Any:
        method = original(attention, forward_batch)
        hooks = runtime.current
        if hooks is not None and hooks.active is not None and method in decompressing:
            return AttnForwardMethod.MLA
        return method

    setattr(choose, _MARK, original)
    return choose
