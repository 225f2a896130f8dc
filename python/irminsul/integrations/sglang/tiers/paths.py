"""Nodes of SGLang's tree on the way to a leaf -> what may be copied of their rows.

Knows the records of nodes; must not know locks, threads or tiers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from irminsul.integrations.sglang.nodes import record_of

__all__ = ["depths_of", "offered", "path_to"]


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


def depths_of(nodes: list[Any], total: int) -> NDArray[np.int64]:
    """Return the depth of each row; -1 where a row was moved here or nothing is known of it.

    What was moved here came from somewhere that has offered it, in the context it was computed in.
    """
    depths = np.full(total, -1, dtype=np.int64)
    position = 0
    for node in nodes:
        record = record_of(node)
        at = position
        for segment in record.segments if record is not None else ():
            if segment.hops == 0 and segment.key is not None:
                depths[at : at + segment.length] = segment.depth
            at += segment.length
        position += len(node.key)
    return depths
