"""The name ``irminsul`` -> SGLang's choices of attention backend.

Must stay cheap, as SGLang's plugin loader calls it in every process; the backend itself is imported
where a model asks for it.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any

from irminsul.integrations.sglang.compat import ORIGINAL

logger = logging.getLogger(__name__)

NAME = "irminsul"
PAGE = 64
"""Tokens of a page where the engine was given no ``--page-size``; the kernel reads pages of 64."""
_WAYS = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
# Releases differ in where the default is asked for.
_DEFAULTS = ("sglang.srt.arg_groups.overrides", "sglang.srt.arg_groups.pipeline")


def register() -> None:
    """Let SGLang accept ``--attention-backend irminsul``; calling it again does nothing.

    Notes
    -----
    Also valid as ``--prefill-attention-backend`` or ``--decode-attention-backend`` alone. Pages are
    of 64 tokens unless ``--page-size`` says otherwise, as with flashmla.
    """
    from sglang.srt import server_args
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    register_attention_backend(NAME)(_create)
    if NAME not in server_args.ATTENTION_BACKEND_CHOICES:
        server_args.add_attention_backend_choices([NAME])
    if NAME not in server_args.CHUNKED_PREFIX_CACHE_SUPPORTED_ATTENTION_BACKENDS:
        server_args.add_chunked_prefix_cache_attention_backend(NAME)
    for place in _DEFAULTS:
        _default_to_whole_pages(place)


def _default_to_whole_pages(place: str) -> None:
    """Wrap a module's choice of a page size; releases without it keep SGLang's default."""
    try:
        module = importlib.import_module(place)
    except ImportError:
        return
    original = getattr(module, "_page_size_default", None)
    if original is None or hasattr(original, ORIGINAL):
        return

    def default(view: Any) -> dict[str, Any]:
        chosen: dict[str, Any] = original(view)
        if "page_size" in chosen and NAME in {getattr(view, way, None) for way in _WAYS}:
            logger.info("--attention-backend irminsul: pages of %d tokens", PAGE)
            return chosen | {"page_size": PAGE}
        return chosen

    setattr(default, ORIGINAL, original)
    default.__qualname__ = original.__qualname__
    module._page_size_default = default  # type: ignore[attr-defined]


def decompresses() -> bool:
    """Return whether prefill has the decompressed form too, which is flashinfer's."""
    from sglang.srt.utils import is_flashinfer_available

    return bool(is_flashinfer_available())


def _create(runner: Any) -> Any:
    """Build the backend for a model runner, and tell SGLang's MLA layers what it takes."""
    from sglang.srt.models.deepseek_common import utils
    from sglang.srt.models.deepseek_common.attention_backend_handler import (
        AttentionBackendRegistry,
    )

    from irminsul.integrations.sglang.attention.backend import IrminsulAttentionBackend

    backend = IrminsulAttentionBackend(runner)
    AttentionBackendRegistry.register(NAME, _form_for(backend))
    # Backends on this list get queries and rows in two parts. Layers that scale their queries
    # (llama_4_scaling) do so only for backends that get them whole.
    apart = utils.FORWARD_ABSORB_CORE_ATTENTION_BACKENDS
    scaled = getattr(runner.model_config.hf_config, "llama_4_scaling", None)
    if NAME not in apart and not scaled:
        apart.append(NAME)
    if runner.device != "cpu" and NAME in apart:
        _leave_turning_to_backend()
    return backend


def _leave_turning_to_backend() -> None:
    """Have MLA layers hand decode's rotary parts over unturned, as they do to trtllm_mla.

    The backend touches both parts anyway, to put queries together and rows into the pool.
    """
    from sglang.srt.models.deepseek_common.attention_forward_methods import forward_mla

    layers = forward_mla.DeepseekMLAForwardMixin
    original = getattr(layers, "_fuse_rope_for_trtllm_mla", None)
    if original is None or hasattr(original, ORIGINAL):
        return

    def fuses(self: Any, forward_batch: Any) -> bool:
        if self.current_attention_backend == NAME:
            return self.rotary_emb is not None and bool(forward_batch.forward_mode.is_decode())
        return bool(original(self, forward_batch))

    setattr(fuses, ORIGINAL, original)
    layers._fuse_rope_for_trtllm_mla = fuses


def _form_for(backend: Any) -> Callable[[Any, Any], Any]:
    """Return SGLang's choice of a batch's form: flashinfer's, where its prefill is at hand."""
    from sglang.srt.models.deepseek_common.attention_backend_handler import (
        AttentionBackendRegistry,
    )
    from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import (
        AttnForwardMethod,
    )

    def choose(attention: Any, forward_batch: Any) -> Any:
        # The decompressed form finds rows by their slots, which borrowed positions have none of.
        borrows = backend.loans is not None and backend.loans.in_use
        if backend.decompressed is None or borrows:
            return AttnForwardMethod.MLA
        # Asked for each time: the cache backend may have wrapped it, for batches with holes.
        return AttentionBackendRegistry.get_handler("flashinfer")(attention, forward_batch)

    return choose
