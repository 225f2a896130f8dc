"""The other ways to the same output: FlashMLA, FlashInfer, and relocating rows before attending.

Knows their Python interfaces; nothing of how results are reported.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache as cache_once

import torch
from irminsul.rotation import RopeTable, relocate_rows
from torch import Tensor
from workloads import SCALE, Case

Call = Callable[[], object]


def flash_mla_call(case: Case, q: Tensor, cache: Tensor, pages: Tensor) -> Call | None:
    """FlashMLA as sglang-kernel ships it, scheduled beforehand; None where it is missing."""
    try:
        from sgl_kernel.flash_mla import flash_mla_with_kvcache, get_mla_metadata
    except ImportError:
        return None
    lens = torch.full((case.batch,), case.keys, dtype=torch.int32, device="cuda")
    metadata, _ = get_mla_metadata()
    queries = q.view(case.batch, case.q_len, case.heads, 576)
    keys = cache.view(-1, 64, 1, 576)

    def call() -> object:
        return flash_mla_with_kvcache(
            queries, keys, pages, lens, 512, metadata, None, SCALE, case.q_len > 1
        )

    call()  # the first call fills in the schedule
    return call


def flash_infer_call(case: Case, q: Tensor, cache: Tensor, pages: Tensor) -> Call | None:
    """FlashInfer's paged MLA for Hopper, planned beforehand; None where it is missing."""
    try:
        from flashinfer.mla import BatchMLAPagedAttentionWrapper
    except ImportError:
        return None
    wrapper = BatchMLAPagedAttentionWrapper(_flash_infer_workspace(), backend="fa3")
    starts = torch.arange(case.batch + 1, dtype=torch.int32)
    lens = torch.full((case.batch,), case.keys, dtype=torch.int32)
    wrapper.plan(
        (starts * case.q_len).cuda(),
        (starts * pages.shape[1]).cuda(),
        pages.flatten(),
        lens.cuda(),
        case.heads,
        512,
        64,
        64,
        case.q_len > 1,
        SCALE,
        q.dtype,
        cache.dtype,
    )
    parts = q[..., :512], q[..., 512:], cache[..., :512], cache[..., 512:]
    return lambda: wrapper.run(*parts, return_lse=True)


@cache_once
def _flash_infer_workspace() -> Tensor:
    return torch.empty(128 << 20, dtype=torch.uint8, device="cuda")


def relocation_call(case: Case, cache: Tensor, pages: Tensor, cos_sin: Tensor) -> Call:
    """Copy every key row to fresh slots of the pool's second half, turned by its tile's delta."""
    slots = (pages[..., None].long() * 64 + torch.arange(64, device="cuda")).flatten()
    source = slots[: case.batch * case.keys]
    half = cache.shape[0] * 32
    source = source % half
    source = torch.unique(source)
    target = half + torch.arange(len(source), device="cuda")
    delta = torch.randint(-100_000, 100_000, (len(source) // 64 + 1,)).cuda()
    deltas = delta.repeat_interleave(64)[: len(source)]
    layer = cache.view(-1, 1, 576)
    table = RopeTable(cos_sin, interleaved=True)
    return lambda: relocate_rows([layer], source, target, deltas, table)
