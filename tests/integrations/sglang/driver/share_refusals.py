"""Engines that ask for borrowing, one by one -> the sentence that refuses each, none started."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any
from unittest import mock

from irminsul.errors import Unsupported
from irminsul.integrations.sglang.agreement import Agreement
from irminsul.integrations.sglang.settings import Settings
from irminsul.integrations.sglang.share import start as share_start
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
        share_start.check(given, options)
    except Unsupported as error:
        return str(error)
    return ""


def with_ranks(ranks: int) -> str:
    with mock.patch.object(Agreement, "ranks", ranks):
        return refusal(context())


def between_releases() -> str:
    """A release like those between 0.5.16 and 0.5.22, which free rows in a third way."""
    if not hasattr(BasePrefixCache, "on_release"):
        with mock.patch.object(RadixCache, "free_kv_row", create=True):
            return refusal(context())
    kept = BasePrefixCache.on_release
    del BasePrefixCache.on_release
    try:
        return refusal(context())
    finally:
        BasePrefixCache.on_release = kept


def main() -> None:
    found = {
        "nothing": refusal(context()),
        "backend": refusal(context(attention_backend="flashinfer")),
        "decode": refusal(context(decode_attention_backend="flashmla")),
        "page": refusal(context(page=16, loans=None)),
        "tables": refusal(context(loans=None)),
        "ranks": with_ranks(2),
        "parallel": refusal(context(enable_dp_attention=True)),
        "events": refusal(context(kv_events_config="{}")),
        "tiers": refusal(context(), Settings(reuse="share", host_bytes=1 << 30)),
        "release": between_releases(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
