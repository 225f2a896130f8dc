"""Prompts and computed rows -> a host tier that is written, filled from the store, and searched.

Must not know an engine: tokens, namespaces and rows in host memory are all it sees.

Every chunk that the host tier holds is a node of its own in a registry, so a prompt finds it at any
position, in part, and verified id by id, exactly as it finds rows in an engine's pool.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from irminsul import ChunkParams, Namespace, Policy, chunk
from irminsul.tiers.aside import Aside
from irminsul.tiers.base import Tier
from irminsul.tiers.cost import CostModel
from irminsul.tiers.fetcher import Fetcher, Text
from irminsul.tiers.index import ChunkIndex, HostSpan
from irminsul.tiers.keys import ChunkRef, ChunkSpace, RowLayout, checked_ids
from irminsul.tiers.prefetch import Prefetch, Wanted
from irminsul.tiers.signposts import Signposts
from irminsul.tiers.value import ChunkRows

__all__ = ["ChunkPool"]

# A prompt covers a chunk when less than this is left to compute of it.
_WORTH = 32
_PUT_S = 10.0
_ASK_S = 1.0
# Rows that wait for the store to say whether it has them.
_ASKING_BYTES = 128 << 20


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
    publishes : bool
        Write what is kept to the store; False where another process writes the same rows.
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
        publishes: bool = True,
    ) -> None:
        self._publishes = publishes
        self.layout = layout
        self.remote = remote
        self.cost = cost or CostModel()
        self._params = params or ChunkParams()
        self._policy = policy or Policy()
        self.index = ChunkIndex(
            host_bytes, layout.token_bytes, self._params, self._policy, pinned=pinned
        )
        self.host = self.index.host
        # Found by windows here, by their signposts there.
        self._signposts = Signposts(self._params) if self._policy.windows else None
        self._aside = Aside()
        self._fetcher: Fetcher | None = None
        if remote is not None:
            self._fetcher = Fetcher(self.index, remote, self.cost, self._signposts, self._aside)
        self._lock = threading.Lock()
        self._spaces: dict[Namespace, ChunkSpace] = {}
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
    ) -> list[Wanted]:
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
        list of Wanted
            From left to right. Not among them: the chunk that the end of `tokens` cuts, whose
            bounds say nothing about content. Attention sinks do not count, since they cannot move.
        """
        if not len(tokens):
            return []
        return self._lacking(self.space(namespace), checked_ids(tokens), list(holes))

    def _lacking(
        self, space: ChunkSpace, ids: NDArray[np.uint32], holes: Sequence[tuple[int, int]]
    ) -> list[Wanted]:
        """Return what `chunks` does, of ids that are checked."""
        bounds, last = chunk(ids, self._params).bounds.tolist(), -1
        sinks = self._policy.sink_tokens
        found: list[Wanted] = []
        for index, (start, end) in enumerate(pairwise(bounds[:-1])):
            if _missing(max(start, sinks), end, holes) < _WORTH:
                continue
            ref = space.part(ids, start, end)
            if ref in self.host:
                continue
            before: ChunkRef | None = None
            if last == index - 1 and found:
                before = found[-1].ref
            elif index:
                before = space.part(ids, bounds[index - 1], start)
            found.append(Wanted(start, ref, before))
            last = index
        return found

    def keep(
        self, chunks: Sequence[ChunkRows], before: Sequence[ChunkRef | None] | None = None
    ) -> None:
        """Put computed chunks in the host tier and, where they are new there, in the store.

        Copies to the host tier before it returns; the store reads the rows later, so they must
        not change any more. Chunks that the store cannot take as fast as they come are dropped
        there and counted (``dropped`` of the host tier's counts).

        Parameters
        ----------
        chunks : sequence of ChunkRows
            In the order of their text.
        before : sequence of ChunkRef or None, optional
            What stands before each, as `chunks` says it.
        """
        for part, previous in zip(chunks, before or [None] * len(chunks), strict=True):
            if self.host.put([part]).result()[0]:
                self.index.add(part.ref, previous)
        remote, size = self.remote, sum(part.rows.nbytes for part in chunks)
        if remote is None or not chunks or not self._publishes:
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
        if self._fetcher is None or not len(tokens):
            return None
        text = Text(self.space(namespace), checked_ids(tokens), holes)
        wanted = self._lacking(text.space, text.ids, holes)
        if not wanted:
            return None
        return self._fetcher.begin(text, wanted, patience_s)

    def admit(self, prefetch: Prefetch) -> None:
        """Make findable what `prefetch` has brought so far.

        In the order of the text, not of arrival: chunks that follow each other become one run,
        which a prompt finds as one span. What comes later is made findable when its fetch is over.
        """
        assert self._fetcher is not None  # it has begun them
        for fetch in prefetch.fetches:
            self._fetcher.admit(fetch)

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
        return self.index.find(namespace, tokens, prefix_len)

    def clear(self) -> None:
        """Forget every chunk of the host tier; the store keeps its own."""
        self.host.clear()

    def close(self) -> None:
        """Give memory and processes back."""
        self._aside.close()
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
            refs = [part.ref for part in fresh]
            if self._signposts is not None and not self._aside.run(
                lambda: self._sign(remote, refs)
            ):
                self.host.counts.add("signposts_dropped", len(refs))

    def _sign(self, remote: Tier, refs: Sequence[ChunkRef]) -> None:
        """Write signposts to chunks; their rows are not needed for that."""
        assert self._signposts is not None
        posts = [post for ref in refs for post in self._signposts.of(ref)]
        if posts:
            remote.put(posts, _PUT_S)


def _missing(start: int, end: int, holes: Sequence[tuple[int, int]]) -> int:
    """Return how many positions of [start, end) lie in one of `holes`."""
    return sum(max(0, min(end, high) - max(start, low)) for low, high in holes)
