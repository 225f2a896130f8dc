"""Where a donor's rows have been -> where they will have been once they serve another prompt.

Must not know engines, nor what is done with either number.
"""

from __future__ import annotations

__all__ = ["moved"]


def moved(hops: int, depth: int, delta: int) -> tuple[int, int]:
    """Return hops and depth of rows that are taken over at a distance of `delta` positions.

    A turn rounds k_r once more; at delta 0 there is none. Whatever the distance, the rows were
    computed over another context, so they are one approximation deeper than their donor.
    """
    return hops + (delta != 0), depth + 1
