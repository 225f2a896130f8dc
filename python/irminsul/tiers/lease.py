"""A chunk in host memory -> a promise that it stays there.

Must not know where it lies, nor what gives it up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from irminsul.tiers.value import ChunkRows

__all__ = ["Lease"]


@dataclass(eq=False)
class Lease:
    """One chunk that stays where it is until `release`.

    Parameters
    ----------
    chunk : ChunkRows
        Its rows lie inside the tier's block.
    """

    chunk: ChunkRows
    _give_back: Callable[[], None] = field(repr=False)
    _put_aside: Callable[[], None] = field(repr=False)
    _held: bool = field(default=True, repr=False)

    def __del__(self) -> None:
        # A plan that was given up somewhere must not hold memory for ever. Python may collect it
        # in the middle of anything, the tier's own changes included: so it is only put aside.
        if self._held:
            self._held = False
            self._put_aside()

    def release(self) -> None:
        """Let the tier move on; calling it again does nothing."""
        if self._held:
            self._held = False
            self._give_back()
