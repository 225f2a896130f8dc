"""Pages of a running request -> the allocator's again, one slot of each named.

Knows how SGLang's paged allocators keep what is free; must not know why pages are given back.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from irminsul.attention import PAGE_SIZE


def give_back(allocator: Any, heads: Tensor) -> None:
    """Free the pages that `heads` stand in, one slot of each, without waiting for the device."""
    pages = heads.to(torch.int64) // PAGE_SIZE
    if hasattr(allocator, "free_page_ids"):
        allocator.free_page_ids(pages)
    elif _holds_back(allocator):
        allocator.free(pages * PAGE_SIZE)
    elif allocator.need_sort:
        # As `free` does once it has found out, at the price of a wait, which pages they are.
        allocator.release_pages = torch.cat((pages, allocator.release_pages))
    else:
        allocator.free_pages = torch.cat((pages, allocator.free_pages))


def _holds_back(allocator: Any) -> bool:
    """Return whether what is freed now is to be freed later, with others."""
    if hasattr(allocator, "is_not_in_free_group"):
        return not allocator.is_not_in_free_group
    # 0.5.19: None, or what has been held back so far.
    return allocator.free_group is not None
