"""Chunks of a host tier -> nodes of a registry, and prompts -> leased rows.

Must not know stores or engines.

A chunk that continues another in the text it was computed in is its child, so that a run of chunks
is found as one span. Lock order: the host tier's lock, then this one, then the registry's.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from irminsul import ChunkParams, Namespace, Policy, Registry, Reuse
from irminsul.errors import IrminsulError, UnknownNode
from irminsul.tiers.host import HostTier
from irminsul.tiers.keys import ChunkRef
from irminsul.tiers.lease import Lease
from irminsul.tiers.value import ChunkRows

__all__ = ["ChunkIndex", "HostSpan"]


@dataclass(frozen=True, eq=False)
class HostSpan:
    """Positions of a prompt that rows in host memory can serve.

    Parameters
    ----------
    start, end : int
        Prompt positions, half open.
    source : int
        Position at which the first row was computed.
    hops, depth : int
        As in `Reuse`.
    pieces : tuple of (Lease, offset, length)
        Concatenated, the span's rows; offsets count tokens inside the leased chunk.
    """

    start: int
    end: int
    source: int
    hops: int
    depth: int
    pieces: tuple[tuple[Lease, int, int], ...]

    def release(self) -> None:
        """Let the tier move on."""
        for lease, _, _ in self.pieces:
            lease.release()


class ChunkIndex:
    """Finds the chunks of one host tier in prompts.

    Parameters
    ----------
    host_bytes : int
        Bound of the tier.
    params, policy
        Of chunks and lookups.
    token_bytes : int
        Bytes of one token's rows.
    pinned : bool
        Page-lock the tier for a GPU.
    """

    def __init__(
        self,
        host_bytes: int,
        token_bytes: int,
        params: ChunkParams,
        policy: Policy,
        *,
        pinned: bool = False,
    ) -> None:
        self.host = HostTier(host_bytes, pinned=pinned, on_evict=self.forget)
        # The tier evicts, not the registry: it has room for more than fits the tier.
        tokens = host_bytes // token_bytes + (1 << 16)
        self._registry = Registry(tokens, params=params, policy=policy)
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._nodes: dict[bytes, int] = {}
        self._chunks: dict[int, ChunkRef] = {}
        # Position behind the last row of each node.
        self._ends: dict[int, int] = {}

    def add(self, ref: ChunkRef, before: ChunkRef | None) -> None:
        """Make a chunk of the host tier findable, as the continuation of the one before it."""
        held = self.host.peek(ref)
        if held is None:
            return
        node = next(self._numbers)
        with self._lock:
            if ref.key in self._nodes:
                return
            parent = None if before is None else self._nodes.get(before.key)
            # Rows are one run only when they were computed one after the other.
            if parent is not None and self._ends.get(parent) != held.base_position:
                parent = None
            self._nodes[ref.key] = node
            self._chunks[node] = ref
            self._ends[node] = held.base_position + len(ref.tokens)
        try:
            self._record(node, parent, held)
        except IrminsulError:
            self.host.counts.add("unindexed")
        # Evicted while it was being indexed: then nobody else takes the node away.
        if ref not in self.host:
            self.forget(ref)
            self._registry.discard(node)

    def _record(self, node: int, parent: int | None, held: ChunkRows) -> None:
        common: dict[str, Any] = {
            "namespace": held.ref.space.namespace,
            "base_position": held.base_position,
            "hops": held.hops,
            "depth": held.depth,
        }
        try:
            self._registry.add(node, parent, held.ref.tokens, **common)
        except UnknownNode:  # the parent was evicted a moment ago
            self._registry.add(node, None, held.ref.tokens, **common)

    def forget(self, ref: ChunkRef) -> None:
        """Follow an eviction; `HostTier` calls it."""
        with self._lock:
            node = self._nodes.pop(ref.key, None)
            if node is not None:
                self._chunks.pop(node, None)
                self._ends.pop(node, None)
        if node is not None:
            self._registry.discard(node)

    def find(
        self, namespace: Namespace, tokens: NDArray[np.int64], prefix_len: int
    ) -> list[HostSpan]:
        """See `ChunkPool.find`."""
        with self._registry.lookup(tokens, namespace=namespace, prefix_len=prefix_len) as plan:
            reuses = [part for part in plan.segments if isinstance(part, Reuse)]
        spans = (self._leased(reuse, tokens) for reuse in reuses)
        return [span for span in spans if span is not None]

    def _leased(self, reuse: Reuse, tokens: NDArray[np.int64]) -> HostSpan | None:
        """Return what `reuse` found, where the rows that are leased now are those it means."""
        pieces: list[tuple[Lease, int, int]] = []
        done = 0
        for piece in reuse.pieces:
            ref = self._chunks.get(piece.node)
            lease = self.host.lease(ref) if ref is not None else None
            if ref is None or lease is None:
                break
            pieces.append((lease, piece.offset, piece.length))
            wanted = tokens[reuse.target + done : reuse.target + done + piece.length]
            if not np.array_equal(ref.tokens[piece.offset : piece.offset + piece.length], wanted):
                break
            if not _is_what(lease.chunk, piece.offset, reuse.source + done, reuse):
                # The same text, evicted and brought back from elsewhere in between.
                self.forget(ref)
                self.add(ref, None)
                break
            done += piece.length
        end = reuse.target + reuse.length
        found = HostSpan(reuse.target, end, reuse.source, reuse.hops, reuse.depth, tuple(pieces))
        if done == reuse.length:
            return found
        found.release()
        return None


def _is_what(chunk: ChunkRows, offset: int, source: int, reuse: Reuse) -> bool:
    """Return whether a row of `chunk` was computed at `source`, and is no worse than `reuse`."""
    same = chunk.base_position + offset == source
    return same and chunk.hops <= reuse.hops and chunk.depth <= reuse.depth
