"""Two arrays of token ids -> how far they agree.

Must not know what the ids stand for, nor who asks.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

__all__ = ["common_prefix"]


def common_prefix(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> int:
    """Return how many ids two arrays, [n] and [m], begin with alike."""
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    at = int(differs.argmax()) if length else 0
    return at if length and differs[at] else length
