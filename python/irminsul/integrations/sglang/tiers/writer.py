"""Rows that a request has just put in the tree -> chunks in the tiers, copied beside the engine.

Knows the tree's nodes and locks; must not know batches, plans or how tiers work.

The scheduler's thread only notes which rows to copy and locks their nodes; a thread of its own
copies, on a stream of its own where there is a GPU. Locks are taken and given back by the
scheduler's thread alone, since the tree belongs to it: `unlock` is called every round.

Ranks that serve the same requests note the same paths in the same order and must hold the same
locks, or they would build different batches. So whether a path is locked follows from the requests
alone, and locks go by number, up to one that all ranks have copied.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from irminsul import Namespace
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.tiers.paths import Offered, offered, origins, path_to
from irminsul.integrations.sglang.tiers.rows import to_host
from irminsul.tiers import ChunkPool, ChunkRef, ChunkRows

# Bytes that are copied between two looks at whether anybody still wants them.
_GROUP_BYTES = 16 << 20


@dataclass(frozen=True)
class _Item:
    """One chunk of a path: where it starts, and how its rows came about."""

    start: int
    ref: ChunkRef
    before: ChunkRef | None
    hops: int
    depth: int


@dataclass
class _Job:
    number: int
    values: list[Tensor]
    items: list[_Item]
    generation: int
    # CUDA events: rows and slots are there once these have happened.
    made: tuple[Any, ...]


class WriteBehind:
    """Copies computed chunks to a `ChunkPool`.

    Parameters
    ----------
    chunks : ChunkPool
        Receives them.
    layers : sequence of Tensor, [slots, 1, row]
        The pool's KV buffers.
    cache : RadixCache
        Whose nodes are locked meanwhile.
    metrics : Metrics
        Counts ``tier_written_tokens`` and ``tier_skipped_tokens``.
    most_tokens : int
        Most tokens that may be locked, twice as many for one path alone; beyond, paths are
        skipped.
    max_chunk : int
        Longest chunk in tokens.
    max_hops, max_depth : int
        Most rotations, and deepest approximation, that are worth sharing.
    together : bool
        Other ranks note the same paths: what this one has to copy does not decide what it locks.
    """

    def __init__(
        self,
        chunks: ChunkPool,
        layers: Any,
        cache: Any,
        metrics: Metrics,
        *,
        most_tokens: int,
        max_chunk: int,
        max_hops: int,
        max_depth: int,
        together: bool = False,
    ) -> None:
        self._chunks = chunks
        self._layers = layers
        self._cache = cache
        self._metrics = metrics
        self._most_tokens = most_tokens
        self._max_chunk = max_chunk
        self._max_hops = max_hops
        self._max_depth = max_depth
        self._together = together
        self._known = Offered()
        self._locked = self._noted = 0
        self._generation = 0
        self._copied = 0
        self._jobs: deque[_Job] = deque()
        # Number, leaf and tokens of each path that is locked; the scheduler's thread alone.
        self._held: deque[tuple[int, Any, int]] = deque()
        self._changed, self._keeping = threading.Condition(), threading.Lock()
        self._closed = False
        device = layers[0].device
        self._stream: Any = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._thread = threading.Thread(target=self._run, name="irminsul-write", daemon=True)
        self._thread.start()

    @property
    def locked_tokens(self) -> int:
        """Tokens of paths that are being copied or wait for it."""
        return self._locked

    @property
    def copied(self) -> int:
        """Number of the last path that has been copied, or was given up."""
        return self._copied

    def path(
        self, leaf: Any, root: Any, namespace: Namespace, stream: Any, trusted: bool = True
    ) -> None:
        """Note the new chunks between `root` and `leaf`; they are copied soon.

        Parameters
        ----------
        leaf, root
            Ends of the path that a request has just inserted.
        namespace : Namespace
            Of the pool.
        stream : torch.cuda.Stream, optional
            On which the rows were, or are still being, written.
        trusted : bool
            What is recorded about the nodes is true; otherwise nothing is copied.
        """
        nodes = path_to(leaf, root)
        fresh = next((i for i, node in enumerate(nodes) if not offered(node)), None)
        if fresh is None:
            return
        starts = [0]
        for node in nodes:
            starts.append(starts[-1] + len(node.key))
        for node in nodes[fresh:]:
            node.irm_offered = True
        # The end of what was offered before cut a chunk, which may be whole now.
        holes = [(max(0, starts[fresh] - self._max_chunk), starts[-1])]
        items = self._items(nodes, starts, namespace, holes) if trusted else []
        if not items and not self._together:
            return
        unordered = self._stream is not None and stream is None
        # A path alone may take twice the bound: the longest prompts are worth sharing most.
        bound = self._most_tokens if self._locked else 2 * self._most_tokens
        if unordered or self._locked + starts[-1] > bound:
            self._metrics.add("tier_skipped_tokens", sum(len(i.ref.tokens) for i in items))
            return
        made = self._made(stream)
        self._cache.inc_lock_ref(leaf)
        self._locked += starts[-1]
        self._noted += 1
        self._held.append((self._noted, leaf, starts[-1]))
        self._known.add(item.ref.key for item in items)
        job = _Job(self._noted, [n.value for n in nodes], items, self._generation, made)
        with self._changed:
            self._jobs.append(job)
            self._changed.notify()

    def unlock(self, number: int) -> None:
        """Give the locks up to path `number` back, which is copied; for the scheduler's thread."""
        while self._held and self._held[0][0] <= number:
            _, leaf, tokens = self._held.popleft()
            self._cache.dec_lock_ref(leaf)
            self._locked -= tokens

    def reset(self) -> None:
        """Forget everything: the tree was emptied, and its rows will be other rows."""
        with self._keeping, self._changed:
            self._generation += 1
            self._jobs.clear()
            self._known.clear()
            self._held.clear()
            self._copied = self._noted
            self._locked = 0

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(5.0)

    def _made(self, stream: Any) -> tuple[Any, ...]:
        """Mark where two streams are now: that of the rows, and this thread's.

        The tree's slots are tensors too, made on the stream that the scheduler runs on.
        """
        if self._stream is None:
            return ()
        here = torch.cuda.current_stream(self._layers[0].device)
        return stream.record_event(), here.record_event()

    def _items(
        self,
        nodes: list[Any],
        starts: list[int],
        namespace: Namespace,
        holes: list[tuple[int, int]],
    ) -> list[_Item]:
        """Return what to copy; after a failure nothing, since locks must not depend on it."""
        try:
            return self._wanted(nodes, starts, namespace, holes)
        except Exception:
            self._metrics.fallback("tier_write", "rows were not copied to the tiers")
            return []

    def _wanted(
        self,
        nodes: list[Any],
        starts: list[int],
        namespace: Namespace,
        holes: list[tuple[int, int]],
    ) -> list[_Item]:
        tokens = np.concatenate([np.array(n.key.raw_token_ids(), dtype=np.int64) for n in nodes])
        if len(tokens) != starts[-1]:
            return []
        all_hops, all_depths = origins(nodes, len(tokens))
        found = []
        for part in self._chunks.chunks(namespace, tokens, holes):
            rows = slice(part.start, part.start + len(part.ref.tokens))
            # A value says one number for all of its rows: that of the worst.
            hops, depth = int(all_hops[rows].max()), int(all_depths[rows].max())
            worth = hops <= self._max_hops and depth <= self._max_depth
            new = not hops or part.ref.key not in self._known
            if worth and new and all_hops[rows].min() >= 0:
                found.append(_Item(part.start, part.ref, part.before, hops, depth))
        return found

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._jobs:
                    if self._closed:
                        return
                    self._changed.wait()
                job = self._jobs.popleft()
            try:
                with self._behind(job.made):
                    self._copy(job)
            except Exception:
                self._metrics.fallback("tier_write", "rows were not copied to the tiers")
            with self._changed:
                # After a reset it stands higher already.
                self._copied = max(self._copied, job.number)

    def _behind(self, made: tuple[Any, ...]) -> Any:
        """Return a block all of whose work on the GPU comes after `made`, on the own stream."""
        if self._stream is None:
            return nullcontext()
        for mark in made:
            self._stream.wait_event(mark)
        return torch.cuda.stream(self._stream)

    def _copy(self, job: _Job) -> None:
        slots = torch.cat(job.values)
        group: list[_Item] = []
        size = 0
        for item in job.items:
            group.append(item)
            size += item.ref.row_bytes
            if size >= _GROUP_BYTES:
                self._copy_group(job, slots, group)
                group, size = [], 0
        if group:
            self._copy_group(job, slots, group)

    def _copy_group(self, job: _Job, slots: Tensor, group: list[_Item]) -> None:
        if job.generation != self._generation:
            return
        index = torch.cat([slots[i.start : i.start + len(i.ref.tokens)] for i in group])
        rows = to_host(self._layers, index.to(torch.int64), self._stream)
        edges = np.cumsum([0, *(len(item.ref.tokens) for item in group)]).tolist()
        parts = [
            ChunkRows(i.ref, i.start, i.hops, i.depth, np.ascontiguousarray(rows[:, low:high]))
            for i, (low, high) in zip(group, pairwise(edges), strict=True)
        ]
        with self._keeping:
            # A reset since the rows were read means that they may not be what their ids say.
            if job.generation != self._generation:
                return
            self._chunks.keep(parts, [item.before for item in group])
        self._metrics.add("tier_written_tokens", edges[-1])
