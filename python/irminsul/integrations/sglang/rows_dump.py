"""A request about to enter the tree -> a file with its rows, for tests that compare them.

Does nothing unless ``IRMINSUL_TEST_DUMP_ROWS`` names a folder. Must be called before insertion:
afterwards the tree may have replaced the request's rows by its own.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch

from irminsul.integrations.sglang.compat import pool_row, prompt_tokens

_number = itertools.count()


def dump(cache: Any, request: Any, length: int) -> None:
    """Write ids, slots, rows of all layers and what was moved to ``<number>.pt``."""
    folder = cache._settings.test_dump_rows
    if not folder:
        return
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    slots = cache.req_to_token_pool.req_to_token[pool_row(request), :length].to(torch.int64)
    pool = cache.token_to_kv_pool_allocator.get_kvcache()
    content = {
        "rid": str(request.rid),
        "tokens": torch.tensor(list(prompt_tokens(request)[:length])),
        "slots": slots.cpu(),
        "rows": torch.stack([layer[slots, 0].cpu() for layer in pool.kv_buffer]),
        "moved": [(m.start, m.end, m.hops, m.depth) for m in getattr(request, "irm_moved", [])],
        "counts": cache._metrics.snapshot(),
    }
    torch.save(content, Path(folder) / f"{next(_number):06d}.pt")
