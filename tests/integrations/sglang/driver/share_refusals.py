"""Engines that ask for borrowing, one by one -> the sentence that refuses each, none started.

Asked where an engine that starts asks for its tree.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from irminsul.errors import Unsupported
from irminsul.integrations.sglang.settings import Settings
from irminsul.integrations.sglang.start import build
from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache
from sglang.srt.mem_cache.radix_cache import RadixCache

SHARE = Settings(reuse="share")


def context(page: int = 64, loans: Any = "tables", **arguments: Any) -> Any:
    names = {"prefill_attention_backend": None, "decode_attention_backend": None}
    server = SimpleNamespace(**{"attention_backend": "irminsul", **names, **arguments})
    runner = SimpleNamespace(attn_backend=SimpleNamespace(loans=loans))
    return SimpleNamespace(
        server_args=server,
        params=SimpleNamespace(page_size=page, attn_tp_cache_group=None),
        tp_worker=SimpleNamespace(model_runner=runner),
    )


def refusal(given: Any, options: Settings = SHARE) -> str:
    try:
        assert build._tree(given, options).__name__ == "SharingRadixCache"
    except Unsupported as error:
        return str(error)
    return ""


def strange_release() -> str:
    """A release that frees rows by none of the calls that are known."""
    names = ("cache_finished_req", "on_release")
    classes = (RadixCache, BasePrefixCache)
    kept = [(one, name, vars(one)[name]) for one in classes for name in names if name in vars(one)]
    for one, name, _ in kept:
        delattr(one, name)
    try:
        return refusal(context())
    finally:
        for one, name, function in kept:
            setattr(one, name, function)


def main() -> None:
    found = {
        "nothing": refusal(context()),
        "backend": refusal(context(attention_backend="flashinfer")),
        "decode": refusal(context(decode_attention_backend="flashmla")),
        "page": refusal(context(page=16, loans=None)),
        "tables": refusal(context(loans=None)),
        "parallel": refusal(context(attn_dp_size=2)),
        "events": refusal(context(kv_events_config="{}")),
        "tiers": refusal(context(), Settings(reuse="share", host_bytes=1 << 30)),
        "release": strange_release(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
