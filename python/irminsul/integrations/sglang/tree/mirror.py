"""Nodes of SGLang's radix tree <-> nodes of irminsul's registry, kept equal.

Must not import SGLang: a tree node is anything with ``parent``, ``key`` and ``value``.

One tree node is a chain of registry nodes, cut where hops or depth change, because the tree cuts
at page boundaries only. The registry compares its own copy of the ids; `rows` compares once more
with the live node, so that a mistake here costs a hit and never serves another text's rows.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from irminsul import Namespace, Piece, Registry
from irminsul.errors import InternalError, IrminsulError, UnknownNode
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.tree import provenance
from irminsul.integrations.sglang.tree.nodes import (
    Rows,
    climb,
    hold,
    offset_of,
    record_of,
    set_record,
)
from irminsul.integrations.sglang.tree.provenance import Moved, NodeRecord, Segment


class TreeMirror:
    """Records what a radix tree holds and finds it again.

    Parameters
    ----------
    registry
        Receives every recorded node; nobody else may add to it.
    metrics
        Counts what is recorded and what goes wrong.

    Notes
    -----
    ``broken`` is set by `lose`, for example at the first failure to follow a split or a deletion.
    The mirror no longer equals the tree then: it is emptied and finds nothing until `clear`.
    ``version`` changes whenever a lookup might find more than before, ``changes`` whenever rows
    that were found may have gone elsewhere.
    """

    def __init__(self, registry: Registry, metrics: Metrics) -> None:
        self.registry = registry
        self.broken = False
        self.version = 0
        self.changes = 0
        self._metrics = metrics
        self._owners: dict[int, Any] = {}
        self._keys = itertools.count(1)

    def record(
        self,
        leaf: Any,
        root: Any,
        namespace: Namespace | None,
        moved: Iterable[Moved],
        start: int = 0,
        context: int = 0,
    ) -> None:
        """Record the nodes between `root` and `leaf` that are not recorded yet.

        Parameters
        ----------
        leaf, root
            Ends of the path that a request has just inserted.
        namespace
            Who may reuse these rows; None records their provenance but makes them no donors.
        moved
            Positions of the request whose rows were moved.
        start, context
            Position of the first row below `root`, and the depth of what stands before it.
        """
        fresh = []
        node = leaf
        while node is not root and record_of(node) is None:
            fresh.append(node)
            node = node.parent
        moved = sorted(moved, key=lambda part: part.start)
        self.version += bool(fresh)
        for child in reversed(fresh):
            above = NodeRecord(start, context, []) if node is root else record_of(node)
            self._record_node(child, above, namespace, moved)
            node = child

    def split(self, tail: Any, head: Any, parent: Any) -> None:
        """Follow a split: `head` now holds the first rows that were `tail`'s."""
        record = record_of(tail)
        if record is None:
            return
        above = record_of(parent)
        # Before a node that begins later than its parent ends stands what only its own depth tells.
        without = record.depth if record.start else 0
        first, second, inside = provenance.split(
            record, len(head.key), above.depth if above is not None else without
        )
        self.changes += 1
        if inside:
            self._split_segment(first.segments[-1], second.segments[0], inside)
        set_record(head, first)
        set_record(tail, second)
        for segment in first.segments:
            if segment.key is not None:
                self._owners[segment.key] = head

    def delete(self, node: Any) -> None:
        """Follow the deletion of a leaf: its rows are donors no more."""
        record = record_of(node)
        self.changes += 1
        for segment in record.segments if record is not None else ():
            if segment.key is not None:
                self._owners.pop(segment.key, None)
                self.registry.discard(segment.key)
        set_record(node, None)

    def clear(self) -> None:
        """Forget everything; the tree is empty. A registry that cannot be emptied stays unused."""
        self.broken = not self._emptied()
        self.version += 1

    def guard(self, change: Callable[..., None], *arguments: Any) -> None:
        """Run `change`; if it fails, empty the mirror and find nothing any more."""
        if self.broken:
            return
        try:
            change(*arguments)
        except Exception:
            self.lose("mirror", "the registry lost track of the tree; reuse is off")

    def lose(self, reason: str, message: str) -> None:
        """Empty the mirror and find nothing until `clear`: what it holds cannot be trusted."""
        self.broken = True
        self._emptied()
        self._metrics.fallback(reason, "%s", message)

    def _emptied(self) -> bool:
        """Forget all rows, and return whether the registry did: what failed once may fail again."""
        self.changes += 1
        self._owners.clear()
        try:
            self.registry.clear()
        except IrminsulError:
            return False
        return True

    def rows(
        self, pieces: Iterable[Piece], source: int, tokens: array[int], target: int
    ) -> list[Rows] | None:
        """Return the live rows behind `pieces`, or None when any of them is not what it claims.

        Parameters
        ----------
        pieces
            Of a segment of a plan made for `tokens` just now.
        source
            Position at which the first row was computed.
        tokens, target
            The prompt's token ids, and the position that the first row is for.
        """
        found: list[Rows] = []
        for piece in pieces:
            key, length = piece.node, piece.length
            node = self._owners.get(key)
            record = None if node is None else record_of(node)
            if node is None or record is None:
                return None
            offset = piece.offset + offset_of(key, record)
            if record.start + offset != source:
                return None
            if not hold(node, offset, tokens, target, length):
                return None
            found.append((node, offset, length))
            target += length
            source += length
        return found

    def follow(
        self, rows: Iterable[Rows], source: int, tokens: array[int], target: int
    ) -> list[Rows] | None:
        """Return where `rows` are now, or None when they are gone.

        Parameters
        ----------
        rows
            As `rows` returned them; since then nodes may have been split or deleted.
        source
            Position at which the first row was computed.
        tokens, target
            The prompt's token ids, and the position that the first row is for.

        Notes
        -----
        A split leaves a node its last rows and gives the first ones to its new parent, so a row is
        found by its position on the way from the node to the root.
        """
        found: list[Rows] = []
        for node, _, count in rows:
            parts = None if self.broken else climb(node, source, source + count)
            for live, offset, length in parts or ():
                if not hold(live, offset, tokens, target, length):
                    return None
                target += length
            if parts is None:
                return None
            found += parts
            source += count
        return found

    def _record_node(
        self,
        node: Any,
        parent: NodeRecord | None,
        namespace: Namespace | None,
        moved: list[Moved],
    ) -> None:
        start = parent.start + sum(part.length for part in parent.segments) if parent else 0
        context = parent.depth if parent else 0
        parts = list(provenance.segments(start, start + len(node.key), moved, context))
        depth = max([context, *(part.depth for part in parts)])
        set_record(node, NodeRecord(start, depth, parts))
        if namespace is None or self.broken:
            return
        tokens = np.array(node.key.raw_token_ids(), dtype=np.int64)
        self._add(node, parts, tokens, start, parent.last_key() if parent else None, namespace)

    def _add(
        self,
        node: Any,
        parts: list[Segment],
        tokens: NDArray[np.int64],
        position: int,
        above: int | None,
        namespace: Namespace,
    ) -> None:
        offset = 0
        for part in parts:
            piece = tokens[offset : offset + part.length]
            part.key = self._register(part, above, piece, position + offset, namespace)
            if part.key is not None:
                self._owners[part.key] = node
            above = part.key
            offset += part.length

    def _register(
        self,
        part: Segment,
        above: int | None,
        tokens: NDArray[np.int64],
        position: int,
        namespace: Namespace,
    ) -> int | None:
        key = next(self._keys)
        common: dict[str, Any] = {
            "namespace": namespace,
            "base_position": position,
            "hops": part.hops,
            "depth": part.depth,
        }
        try:
            try:
                self.registry.add(key, above, tokens, **common)
            except UnknownNode:
                # The registry dropped the parent to make room; these rows start a path.
                self.registry.add(key, None, tokens, **common)
        except InternalError:
            raise  # The registry may hold half a node: `guard` gives it up.
        except IrminsulError:
            self._metrics.fallback("record", "%d tokens are no donors", part.length)
            return None
        self._metrics.add("recorded_tokens", part.length)
        return key

    def _split_segment(self, head: Segment, tail: Segment, at: int) -> None:
        if tail.key is None:
            return
        head.key = next(self._keys)
        try:
            self.registry.split(tail.key, at, head.key)
        except UnknownNode:
            self._owners.pop(tail.key, None)
            head.key = tail.key = None
