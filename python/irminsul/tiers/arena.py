"""One block of memory -> pieces of it, handed out and taken back.

Must not know what the pieces hold. The sum of what is handed out never exceeds the block, which is
how every buffer of a tier stays inside the bound that its owner set.
"""

from __future__ import annotations

import bisect

from irminsul.errors import InvalidParams

__all__ = ["ALIGNMENT", "Arena"]

# Cache lines and vector loads; also what registered memory of network cards likes.
ALIGNMENT = 64


class Arena:
    """First-fit allocator of byte ranges; neighbours that are free become one. Not thread-safe.

    Parameters
    ----------
    capacity : int
        Bytes to hand out, at least 64; what does not fill a multiple of 64 is left.

    Raises
    ------
    InvalidParams
        The capacity is below 64.

    Examples
    --------
    >>> arena = Arena(256)
    >>> arena.take(100), arena.take(100), arena.take(1)
    (0, 128, None)
    >>> arena.give(0)
    >>> arena.used
    128
    """

    def __init__(self, capacity: int) -> None:
        if capacity < ALIGNMENT:
            raise InvalidParams(f"capacity must be at least {ALIGNMENT} bytes, got {capacity}")
        self.capacity = capacity // ALIGNMENT * ALIGNMENT
        self._starts = [0]
        self._sizes = {0: self.capacity}
        self._taken: dict[int, int] = {}
        self._used = 0

    @property
    def used(self) -> int:
        """Bytes that are handed out, each piece rounded up to 64."""
        return self._used

    def take(self, size: int) -> int | None:
        """Return the offset of `size` free bytes, or None when no hole is that large."""
        needed = max(ALIGNMENT, -(-size // ALIGNMENT) * ALIGNMENT)
        for index, start in enumerate(self._starts):
            free = self._sizes[start]
            if free < needed:
                continue
            del self._sizes[start]
            if free > needed:
                self._starts[index] = start + needed
                self._sizes[start + needed] = free - needed
            else:
                del self._starts[index]
            self._taken[start] = needed
            self._used += needed
            return start
        return None

    def give(self, offset: int) -> None:
        """Take back the piece at `offset`.

        Raises
        ------
        InvalidParams
            Nothing that is handed out begins there.
        """
        size = self._taken.pop(offset, None)
        if size is None:
            raise InvalidParams(f"offset {offset} is not one that was handed out")
        self._used -= size
        index = bisect.bisect_left(self._starts, offset)
        if index < len(self._starts) and self._starts[index] == offset + size:
            size += self._sizes.pop(self._starts.pop(index))
        if index > 0:
            before = self._starts[index - 1]
            if before + self._sizes[before] == offset:
                self._sizes[before] += size
                return
        self._starts.insert(index, offset)
        self._sizes[offset] = size
