"""One block of memory shared with the client process -> pieces of it for the calls under way.

Must not know threads, processes or what a call means. Not thread-safe: its owner's lock guards it.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from irminsul.tiers.arena import Arena

if TYPE_CHECKING:
    from irminsul.tiers.mooncake.calls import Call

__all__ = ["Room"]


class Room:
    """Hands out pieces of a shared block.

    Parameters
    ----------
    size : int
        Bytes of the block: one half for what comes, one for what goes, so that a burst of writes
        cannot keep reads waiting.
    """

    def __init__(self, size: int) -> None:
        self.descriptor = os.memfd_create("irminsul-tier")
        os.ftruncate(self.descriptor, size)
        memory = mmap.mmap(self.descriptor, size)
        self._block: NDArray[np.uint8] = np.frombuffer(memory, dtype=np.uint8)
        half = size // 2
        self._arenas = {"get": (0, Arena(half)), "put": (half, Arena(half))}

    @property
    def used(self) -> int:
        """Bytes that are handed out."""
        return sum(arena.used for _, arena in self._arenas.values())

    def place(self, call: Call) -> bool:
        """Give `call` its pieces: all or none."""
        if not call.sizes:
            return True
        base, arena = self._arenas[call.queue]
        taken: list[int] = []
        for size in call.sizes:
            offset = arena.take(size)
            if offset is None:
                for given in taken:
                    arena.give(given)
                return False
            taken.append(offset)
        call.offsets = [base + offset for offset in taken]
        return True

    def pieces(self, call: Call) -> list[NDArray[np.uint8]]:
        """Return the pieces of `call`."""
        pairs = zip(call.offsets, call.sizes, strict=True)
        return [self._block[offset : offset + size] for offset, size in pairs]

    def give(self, call: Call) -> None:
        """Take the pieces of `call` back."""
        if call.offsets:
            base, arena = self._arenas[call.queue]
            for offset in call.offsets:
                arena.give(offset - base)
            call.offsets = []

    def close(self) -> None:
        """Close the block's descriptor; the memory lives as long as somebody looks at it."""
        os.close(self.descriptor)
