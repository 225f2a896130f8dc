"""Nodes of SGLang's tree on the way to a leaf -> what may be copied of their rows.

Knows the records of nodes; must not know locks, threads or tiers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from irminsul.integrations.sglang.tree.nodes import record_of

__all__ = ["Offered", "offered", "origins", "path_to"]


class Offered:
    """Keys of the chunks that were copied lately.

    Rows that were moved came from somewhere that has offered them: they are copied again only in a
    chunk that is new, where they meet others.
    """

    def __init__(self, most: int = 1 << 16) -> None:
        self._most = most
        self._keys: dict[bytes, None] = {}

    def __contains__(self, key: bytes) -> bool:
        return key in self._keys

    def add(self, keys: Iterable[bytes]) -> None:
        """Note `keys`, and forget the oldest where they are too many."""
        self._keys.update(dict.fromkeys(keys))
        for _ in range(len(self._keys) - self._most):
            del self._keys[next(iter(self._keys))]

    def clear(self) -> None:
        """Forget them all."""
        self._keys.clear()


def path_to(leaf: Any, root: Any) -> list[Any]:
    """Return the nodes below `root` down to `leaf`, from the top."""
    nodes = []
    while leaf is not root:
        nodes.append(leaf)
        leaf = leaf.parent
    return nodes[::-1]


def offered(node: Any) -> bool:
    """Return whether the rows of `node` were noted before."""
    return bool(getattr(node, "irm_offered", False))


def origins(nodes: list[Any], total: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return hops and depth of each row; both are -1 where nothing is known of it.

    Rows that were moved to this path are among them: a chunk in which moved and computed rows meet
    exists here and nowhere else.
    """
    hops = np.full(total, -1, dtype=np.int64)
    depths = hops.copy()
    position = 0
    for node in nodes:
        record = record_of(node)
        at = position
        for segment in record.segments if record is not None else ():
            if segment.key is not None:
                hops[at : at + segment.length] = segment.hops
                depths[at : at + segment.length] = segment.depth
            at += segment.length
        position += len(node.key)
    return hops, depths
