"""A size -> one block of host memory, page-locked for a GPU where that is asked for.

Must not know what it holds. torch is imported only to pin.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from irminsul.errors import InvalidParams

__all__ = ["block_of"]


def block_of(capacity: int, pinned: bool) -> tuple[Any, NDArray[np.uint8]]:
    """Return what keeps the memory pinned, and the memory."""
    block = np.empty(capacity, dtype=np.uint8)
    return (_Pinned(block) if pinned else None), block


class _Pinned:
    """Keeps `block` page-locked for as long as it lives.

    Registered, not allocated by torch: its allocator rounds up to a power of two, and the bound is
    the operator's.
    """

    def __init__(self, block: NDArray[np.uint8]) -> None:
        self._block = block
        try:
            import torch

            self._runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        except (ImportError, RuntimeError, AssertionError) as error:
            raise InvalidParams(f"memory can be pinned for a GPU only: {error}") from error
        code = int(self._runtime.cudaHostRegister(block.ctypes.data, block.nbytes, 0))
        if code:
            self._runtime = None
            raise InvalidParams(
                f"cannot pin {block.nbytes} bytes of host memory: CUDA error {code}"
            )

    def __del__(self) -> None:
        if getattr(self, "_runtime", None) is not None:
            self._runtime.cudaHostUnregister(self._block.ctypes.data)
