"""SGLang's choice of MLA form per batch -> the cheaper form for batches with holes.

Knows the dispatch registry; must not know plans beyond "one is running", or what a form costs.

SGLang decides by the sum of prefixes, which rows of one request repeat. Where it would decompress,
a batch with holes is absorbed instead when that is cheaper for its rows; where it absorbs, because
the prefixes are short or a captured graph wants it, nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from irminsul.integrations.sglang import runtime
from irminsul.integrations.sglang.compat import ORIGINAL

# Backends whose absorbed extend is SGLang's own path for short prefixes.
_ABSORBING = ("triton", "flashinfer", "flashmla", "fa3", "cutlass_mla")
# Those of them that also have the decompressed form for rows with a prefix.
DECOMPRESSING = ("flashinfer", "flashmla", "fa3", "cutlass_mla")


def install() -> None:
    """Wrap the handlers of backends that can absorb; calling it again does nothing."""
    from sglang.srt.models.deepseek_common.attention_backend_handler import (
        AttentionBackendRegistry,
    )

    for name in _ABSORBING:
        handler = AttentionBackendRegistry._handlers.get(name)
        if handler is not None and not hasattr(handler, ORIGINAL):
            AttentionBackendRegistry.register(name, _choosing(handler))


def _choosing(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
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
        if hooks is None or hooks.active is None or method not in decompressing:
            return method
        # Asked of the hooks, not of the batch: SGLang's runners work on copies of its fields.
        return AttnForwardMethod.MLA if hooks.absorbs else method

    setattr(choose, ORIGINAL, original)
    return choose
