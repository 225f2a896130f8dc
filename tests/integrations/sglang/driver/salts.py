"""The HTTP layer's own class, before and after hooking -> the keys it makes of salts and keys."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from irminsul.integrations.sglang import plugin
from irminsul.integrations.sglang.tree import tenancy
from sglang.srt.entrypoints.openai.protocol import CompletionRequest
from sglang.srt.entrypoints.openai.serving_base import OpenAIServingBase
from sglang.srt.plugins.hook_registry import HookRegistry


def key(backend: str | None, **fields: Any) -> Any:
    arguments = SimpleNamespace(radix_cache_backend=backend)
    serving: Any = SimpleNamespace(tokenizer_manager=SimpleNamespace(server_args=arguments))
    request = CompletionRequest(model="m", prompt="p", **fields)
    return OpenAIServingBase._compute_extra_key(serving, request)


def main() -> None:
    pairs = ({"cache_salt": "ab", "extra_key": "c"}, {"cache_salt": "a", "extra_key": "bc"})
    plugin.register()
    HookRegistry.apply_hooks()
    found = {
        "stock": [key(None, **pair) for pair in pairs],
        "hooked": [key("irminsul", **pair) for pair in pairs],
        "key_alone": key("irminsul", extra_key="tenant"),
        "required": tenancy.TARGET in plugin.targets(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
