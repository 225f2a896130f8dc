"""The name ``irminsul`` -> SGLang's choices of attention backend.

Must stay cheap, as SGLang's plugin loader calls it in every process; the backend itself is imported
where a model asks for it.
"""

from __future__ import annotations

from typing import Any

NAME = "irminsul"


def register() -> None:
    """Let SGLang accept ``--attention-backend irminsul``; calling it again does nothing.

    Notes
    -----
    Also valid as ``--prefill-attention-backend`` or ``--decode-attention-backend`` alone.
    """
    from sglang.srt import server_args
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    register_attention_backend(NAME)(_create)
    if NAME not in server_args.ATTENTION_BACKEND_CHOICES:
        server_args.add_attention_backend_choices([NAME])


def _create(runner: Any) -> Any:
    """Build the backend for a model runner, and have its MLA layers hand over absorbed queries."""
    from sglang.srt.models.deepseek_common.attention_backend_handler import (
        AttentionBackendRegistry,
    )
    from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import (
        AttnForwardMethod,
    )

    from irminsul.integrations.sglang.attention_backend import IrminsulAttentionBackend

    AttentionBackendRegistry.register(NAME, lambda attention, batch: AttnForwardMethod.MLA)
    return IrminsulAttentionBackend(runner)
