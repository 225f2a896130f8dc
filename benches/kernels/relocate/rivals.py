"""SGLang's copies of KV rows in all layers -> calls of one shape, where they can be imported.

Neither rotates: they are what a host would use to move rows whose position does not change.
"""

from collections.abc import Callable

import torch

Copy = Callable[[torch.Tensor, torch.Tensor], None]


def sglang_calls(layers: list[torch.Tensor], row_bytes: int) -> dict[str, Copy]:
    """Return calls of (source slots, target slots) by name."""
    pointers = torch.tensor([layer.data_ptr() for layer in layers], dtype=torch.int64).cuda()
    pointers = pointers.view(torch.uint64)
    found = {}
    for make in (_move_kv_cache, _transfer_mla):
        try:
            found |= make(pointers, row_bytes)
        except (ImportError, OSError):
            continue
    return found


def _move_kv_cache(pointers: torch.Tensor, row_bytes: int) -> dict[str, Copy]:
    """Return the copy behind move_kv_cache, as SGLang's pools call it for rows of this size."""
    from sglang.kernels.ops.kvcache.cache_move import copy_all_layer_kv_cache_func

    strides = torch.full((pointers.numel(),), row_bytes, device="cuda")
    tile, cap = 128, 256
    config = {"bytes_per_tile": tile, "byte_tiles": -(-row_bytes // tile), "num_warps": 4}

    def call(source: torch.Tensor, target: torch.Tensor) -> None:
        for first in range(0, source.numel(), cap):
            rows = min(cap, source.numel() - first)
            upper = 1 << (rows - 1).bit_length()
            part = slice(first, first + rows)
            copy_all_layer_kv_cache_func(
                pointers, strides, target[part], source[part], rows, upper, config
            )

    return {"SGLang move_kv_cache": call}


def _transfer_mla(pointers: torch.Tensor, row_bytes: int) -> dict[str, Copy]:
    """Return its transfer between pools: its own number of blocks, and a whole GPU of them."""
    from sgl_kernel.kvcacheio import transfer_kv_all_layer_mla

    def with_blocks(blocks: int) -> Copy:
        def call(source: torch.Tensor, target: torch.Tensor) -> None:
            transfer_kv_all_layer_mla(
                pointers, pointers, source, target, row_bytes, pointers.numel(), blocks
            )

        return call

    return {
        "SGLang transfer_kv_all_layer_mla": with_blocks(2),
        "SGLang transfer_kv_all_layer_mla, 264 blocks": with_blocks(264),
    }
