"""An SGLang process of rank 1 -> one that loses chunks, copies late and hears late from the store.

What ranks of one engine must agree on is forced to differ here. An entry point for SGLang's
plugins; `driver/ranks.py` puts it on the path.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from typing import Any

NAME = "irminsul_unequal"


def register() -> None:
    """Patch this process; rank 0 behaves as ever."""
    from irminsul.integrations.sglang.tiers.writer import WriteBehind
    from irminsul.tiers.index import ChunkIndex

    if hasattr(ChunkIndex.find, "irminsul_original"):
        return
    _wrap(ChunkIndex, "find", _lossy)
    _wrap(WriteBehind, "_copy", _slow)
    _wrap(ChunkIndex, "add", _slow)


def _wrap(owner: Any, name: str, around: Any) -> None:
    original = getattr(owner, name)

    def call(self: Any, *args: Any, **kw: Any) -> Any:
        return around(original, self, *args, **kw) if _second() else original(self, *args, **kw)

    call.irminsul_original = original  # type: ignore[attr-defined]
    setattr(owner, name, call)


def _second() -> bool:
    import torch

    return torch.distributed.is_initialized() and torch.distributed.get_rank() == 1


_number = itertools.count()


def _lossy(original: Any, index: Any, *args: Any) -> Any:
    """Lose every third span, and the last chunk of every other."""
    found = []
    for span in original(index, *args):
        match next(_number) % 3:
            case 0:
                span.release()
            case 1 if len(span.pieces) > 1:
                *kept, (lease, _, count) = span.pieces
                lease.release()
                found.append(replace(span, end=span.end - count, pieces=tuple(kept)))
            case _:
                found.append(span)
    return found


def _slow(original: Any, *args: Any) -> Any:
    time.sleep(0.05 * (next(_number) % 4))
    return original(*args)
