"""Prompts and computed rows -> a host tier that is written, filled from the store, and searched.

Must not know an engine: tokens, namespaces and rows in host memory are all it sees.

Every chunk that the host tier holds is a node of its own in a registry, so a prompt finds it at any
position, in part, and verified id by id, exactly as it finds rows in an engine's pool.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count, pairwise

import numpy as np
from numpy.typing import NDArray

from irminsul import ChunkParams, Namespace, Policy, Registry, Reuse, chunk
from irminsul.errors import IrminsulError
from irminsul.tiers.base import Tier
from irminsul.tiers.cost import Candidate, CostModel
from irminsul.tiers.host import HostTier, Lease
from irminsul.tiers.keys import ChunkRef, ChunkSpace, RowLayout
from irminsul.tiers.ticket import Ticket
from irminsul.tiers.value import ChunkRows, encoded_bytes

__all__ = ["ChunkPool", "HostSpan", "Prefetch"]

# A prompt covers a chunk when less than this is left to compute of it.
_WORTH = 32
_PUT_S = 10.0
_ASK_S = 1.0
# Rows that wait for the store to say whether it has them.
_ASKING_BYTES = 128 << 20


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


class _Fetch:
    """One call of `Tier.get` and when it last brought something."""

    def __init__(self) -> None:
        self.news_at = time.monotonic()
        self.ticket: Ticket[bool] | None = None

    @property
    def done(self) -> bool:
        return self.ticket is not None and self.ticket.done


class Prefetch:
    """Chunks of one prompt on their way to the host tier.

    Parameters
    ----------
    patience_s : float
        Longest time without news.
    most_s : float
        Longest time in all.

    Notes
    -----
    ``done`` turns true when everything that is coming has come, when nothing has come for
    ``patience_s``, or after ``most_s``. What comes later is kept for the next prompt.
    """

    def __init__(self, patience_s: float, most_s: float) -> None:
        now = time.monotonic()
        self._patience_s = patience_s
        self._until = now + most_s
        self._news_at = now
        # None: the store has not said yet what it has.
        self._fetches: list[_Fetch] | None = None

    @property
    def done(self) -> bool:
        """True when there is nothing to wait for, or no point in it."""
        now = time.monotonic()
        if now >= self._until:
            return True
        if self._fetches is None:
            return now >= self._news_at + self._patience_s
        # A fetch without news for that long is given up, whatever the others do.
        coming = [fetch for fetch in self._fetches if not fetch.done]
        return all(now >= fetch.news_at + self._patience_s for fetch in coming)

    @property
    def left_s(self) -> float:
        """Seconds that are left at most."""
        return max(0.0, self._until - time.monotonic())

    def expect(self, fetches: list[_Fetch]) -> None:
        """Wait for these fetches, and for no answer of `exists` any more; for `ChunkPool`."""
        self._fetches = fetches


class ChunkPool:
    """A host tier with an index, in front of an optional shared store.

    Parameters
    ----------
    layout : RowLayout
        Rows of one token.
    host_bytes : int
        Bound of the host tier.
    remote : Tier, optional
        A store that other engines share.
    cost : CostModel, optional
        Decides what is fetched.
    params : ChunkParams
        The same on every engine that shares the store: other bounds are other keys.
    policy : Policy
        Of lookups.
    pinned : bool
        Page-lock the host tier for a GPU.
    """

    def __init__(
        self,
        layout: RowLayout,
        host_bytes: int,
        remote: Tier | None = None,
        cost: CostModel | None = None,
        *,
        params: ChunkParams | None = None,
        policy: Policy | None = None,
        pinned: bool = False,
    ) -> None:
        self.layout = layout
        self.remote = remote
        self.cost = cost or CostModel()
        self.host = HostTier(host_bytes, pinned=pinned, on_evict=self._forget)
        self._params = params or ChunkParams()
        self._policy = policy or Policy()
        # The tier evicts, not the registry: it has room for more than fits the tier.
        tokens = host_bytes // layout.token_bytes + (1 << 16)
        self._registry = Registry(tokens, params=self._params, policy=self._policy)
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._nodes: dict[bytes, int] = {}
        self._chunks: dict[int, ChunkRef] = {}
        self._spaces: dict[Namespace, ChunkSpace] = {}
        self._coming: dict[bytes, _Fetch] = {}
        self._asking_bytes = 0

    def space(self, namespace: Namespace) -> ChunkSpace:
        """Return the space of `namespace`, made once."""
        with self._lock:
            known = self._spaces.get(namespace)
            if known is None:
                if len(self._spaces) >= 4096:  # tenants come and go
                    self._spaces.clear()
                known = self._spaces[namespace] = ChunkSpace(namespace, self.layout)
            return known

    def chunks(
        self, namespace: Namespace, tokens: NDArray[np.int64], holes: Iterable[tuple[int, int]]
    ) -> list[tuple[int, ChunkRef]]:
        """Return the whole chunks of `tokens` that `holes` need and the host tier lacks.

        Parameters
        ----------
        namespace : Namespace
            Whose rows.
        tokens : ndarray, int64, [n]
            A prompt, or a prompt and its answer, from position 0 on.
        holes : iterable of (start, end)
            Positions that matter; a chunk counts when 32 of its tokens lie in one.

        Returns
        -------
        list of (start, ChunkRef)
            From left to right. Not among them: the chunk that the end of `tokens` cuts, whose
            bounds say nothing about content, and what holds attention sinks, which cannot move.
        """
        wanted = list(holes)
        bounds = chunk(tokens, self._params).bounds.tolist()
        space, found = self.space(namespace), []
        for start, end in pairwise(bounds[:-1]):
            if start < self._policy.sink_tokens or _missing(start, end, wanted) < _WORTH:
                continue
            ref = space.ref(tokens[start:end])
            if ref not in self.host:
                found.append((start, ref))
        return found

    def keep(self, chunks: Sequence[ChunkRows]) -> None:
        """Put computed chunks in the host tier and, where they are new there, in the store.

        Copies to the host tier before it returns; the store reads the rows later, so they must
        not change any more. Chunks that the store cannot take as fast as they come are dropped
        there and counted (``dropped`` of the host tier's counts).
        """
        for part in chunks:
            self._index(part)
        remote, size = self.remote, sum(part.rows.nbytes for part in chunks)
        if remote is None or not chunks:
            return
        with self._lock:
            if self._asking_bytes + size > _ASKING_BYTES:
                self.host.counts.add("dropped", len(chunks))
                return
            self._asking_bytes += size
        asked = remote.exists([part.ref for part in chunks], _ASK_S)
        asked.when_over(lambda: self._publish(remote, chunks, size, asked.result(0)))

    def prefetch(
        self,
        namespace: Namespace,
        tokens: NDArray[np.int64],
        holes: Sequence[tuple[int, int]],
        patience_s: float,
    ) -> Prefetch | None:
        """Start to fetch what the store has of `holes` and is worth it; None when nothing is.

        Parameters
        ----------
        namespace, tokens, holes
            As for `chunks`.
        patience_s : float
            See `Prefetch`.
        """
        if self.remote is None:
            return None
        refs = [ref for _, ref in self.chunks(namespace, tokens, holes)]
        if not refs:
            return None
        saved = self.cost.speeds.compute_s(sum(len(ref.tokens) for ref in refs))
        prefetch = Prefetch(patience_s, saved)
        asked = self.remote.exists(refs, min(patience_s, saved))
        asked.when_over(lambda: self._fetch(prefetch, refs, asked.result(0)))
        return prefetch

    def find(
        self, namespace: Namespace, tokens: NDArray[np.int64], prefix_len: int
    ) -> list[HostSpan]:
        """Return what the host tier can serve of a prompt, leased: release every span.

        Parameters
        ----------
        namespace : Namespace
            Whose rows.
        tokens : ndarray, int64, [n]
            The whole prompt.
        prefix_len : int
            Positions that need nothing.
        """
        with self._registry.lookup(tokens, namespace=namespace, prefix_len=prefix_len) as plan:
            reuses = [part for part in plan.segments if isinstance(part, Reuse)]
        spans = (self._leased(reuse, tokens) for reuse in reuses)
        return [span for span in spans if span is not None]

    def clear(self) -> None:
        """Forget every chunk of the host tier; the store keeps its own."""
        self.host.clear()

    def close(self) -> None:
        """Give memory and processes back."""
        if self.remote is not None:
            self.remote.close()
        self.host.close()

    def _publish(
        self, remote: Tier, chunks: Sequence[ChunkRows], size: int, there: list[bool]
    ) -> None:
        """Write what the store lacks; its own bounds take over from here."""
        with self._lock:
            self._asking_bytes -= size
        fresh = [part for part, known in zip(chunks, there, strict=True) if not known]
        if fresh:
            remote.put(fresh, _PUT_S)

    def _fetch(self, prefetch: Prefetch, refs: Sequence[ChunkRef], there: list[bool]) -> None:
        """Fetch the worthwhile part of what is there; join fetches that others have begun."""
        remote = self.remote
        assert remote is not None
        new = [ref for ref, known in zip(refs, there, strict=True) if known]
        new = [ref for ref in new if ref not in self.host]
        with self._lock:
            self._coming = {key: f for key, f in self._coming.items() if not f.done}
            joined = {self._coming[ref.key] for ref in new if ref.key in self._coming}
            new = [ref for ref in new if ref.key not in self._coming]
        candidates = [Candidate(encoded_bytes(ref), len(ref.tokens)) for ref in new]
        chosen = [new[index] for index in self.cost.choose(candidates, prefetch.left_s)]
        fetches = list(joined)
        if chosen:
            fetch = _Fetch()
            fetches.append(fetch)
            with self._lock:
                self._coming.update((ref.key, fetch) for ref in chosen)

            def receive(part: ChunkRows) -> None:
                self._index(part)
                fetch.news_at = time.monotonic()

            fetch.ticket = remote.get(chosen, max(prefetch.left_s, _ASK_S), receive)
        prefetch.expect(fetches)

    def _index(self, part: ChunkRows) -> None:
        """Put one chunk in the host tier and make it findable."""
        if not self.host.put([part]).result()[0]:
            return
        ref, node = part.ref, next(self._numbers)
        with self._lock:
            if ref.key in self._nodes:
                return
            self._nodes[ref.key] = node
            self._chunks[node] = ref
        try:
            self._registry.add(
                node,
                None,
                ref.tokens,
                namespace=ref.space.namespace,
                base_position=part.base_position,
                hops=part.hops,
                depth=part.depth,
            )
        except IrminsulError:
            self.host.counts.add("unindexed")
        # Evicted while it was being indexed: then nobody else takes the node away.
        if ref not in self.host:
            self._registry.discard(node)

    def _forget(self, ref: ChunkRef) -> None:
        with self._lock:
            node = self._nodes.pop(ref.key, None)
            if node is not None:
                self._chunks.pop(node, None)
        if node is not None:
            self._registry.discard(node)

    def _leased(self, reuse: Reuse, tokens: NDArray[np.int64]) -> HostSpan | None:
        pieces: list[tuple[Lease, int, int]] = []
        end = reuse.target + reuse.length
        span = HostSpan(reuse.target, end, reuse.source, reuse.hops, reuse.depth, ())
        position = reuse.target
        for piece in reuse.pieces:
            ref = self._chunks.get(piece.node)
            lease = self.host.lease(ref) if ref is not None else None
            if ref is None or lease is None:
                break
            pieces.append((lease, piece.offset, piece.length))
            held = ref.tokens[piece.offset : piece.offset + piece.length]
            if not np.array_equal(held, tokens[position : position + piece.length]):
                break
            position += piece.length
        found = HostSpan(span.start, span.end, span.source, span.hops, span.depth, tuple(pieces))
        if position == end:
            return found
        found.release()
        return None


def _missing(start: int, end: int, holes: Sequence[tuple[int, int]]) -> int:
    """Return how many positions of [start, end) lie in one of `holes`."""
    return sum(max(0, min(end, high) - max(start, low)) for low, high in holes)
