"""A radix-tree node -> what is recorded about it, and its live rows by position.

Must not import SGLang: a tree node is anything with ``parent``, ``key`` and ``value``.
"""

from __future__ import annotations

import ctypes
import math
import time
from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from irminsul.integrations.sglang.tree.provenance import NodeRecord

_RECORD = "irm_record"

_memcmp = ctypes.PyDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

# Rows of one live tree node: the node, the first row inside it, how many.
Rows = tuple[Any, int, int]


def record_of(node: Any) -> NodeRecord | None:
    """Return what is recorded about a tree node."""
    record: NodeRecord | None = getattr(node, _RECORD, None)
    return record


def hold(node: Any, offset: int, tokens: array[int], target: int, count: int) -> bool:
    """Return whether `count` rows of a live node hold the ids of `tokens` from `target` on."""
    if node.value is None:
        return False
    held: array[int] = node.key.token_ids
    if offset < 0 or target < 0 or offset + count > len(held) or target + count > len(tokens):
        return False
    if not held.typecode == tokens.typecode == "q":
        return False
    # Some thousand ids are compared at each hit; as bytes, without an array of answers, they take
    # half the time.
    one, two = held.buffer_info()[0], tokens.buffer_info()[0]
    return bool(_memcmp(one + 8 * offset, two + 8 * target, 8 * count) == 0)


def set_record(node: Any, record: NodeRecord | None) -> None:
    """Remember `record` on a tree node; None when the node is gone."""
    setattr(node, _RECORD, record)


def ids_of(tokens: array[int]) -> NDArray[np.int64]:
    """Return a view of SGLang's ids; it must be gone before SGLang appends to them."""
    return np.frombuffer(tokens, dtype=np.int64)


def touch(nodes: Iterable[Any]) -> None:
    """Mark `nodes` and what is above them as used now, each at a moment of its own.

    The tree evicts the least recently used leaf, and leaves used at the same moment in the order
    of a set, which differs from rank to rank: trees of one group would hold different paths.
    """
    now = 0.0
    for node in dict.fromkeys(nodes):
        now = max(math.nextafter(now, math.inf), time.monotonic())
        while node is not None and node.last_access_time < now:
            node.last_access_time = now
            node = node.parent


def climb(node: Any, start: int, end: int) -> list[Rows] | None:
    """Return the rows of positions ``[start, end)`` on the path from `node` to the root."""
    found: list[Rows] = []
    while end > start:
        record = None if node is None else record_of(node)
        if record is None or end > record.start + len(node.key):
            return None
        if record.start < end:
            low = max(start, record.start)
            found.append((node, low - record.start, end - low))
            end = low
        node = node.parent
    return found[::-1]


def offset_of(key: int, record: NodeRecord) -> int:
    """Return the first row of registry node `key` inside the tree node that owns it."""
    offset = 0
    for segment in record.segments:
        if segment.key == key:
            return offset
        offset += segment.length
    raise LookupError(f"registry node {key} is not part of the tree node that owns it")
