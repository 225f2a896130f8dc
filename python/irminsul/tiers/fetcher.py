"""Chunks that a prompt lacks -> the worthwhile ones fetched from a store into host memory.

Must not know engines, nor how chunks are searched.

Three questions, each to the store as one batch: which of the prompt's own chunks are there; where
they are not, which signposts are; and which chunks those name. The second and the third are asked
only where the answer before leaves something to ask.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from irminsul.tiers.aside import Aside
from irminsul.tiers.base import Tier
from irminsul.tiers.cost import Candidate, CostModel
from irminsul.tiers.index import ChunkIndex
from irminsul.tiers.keys import ChunkRef, ChunkSpace
from irminsul.tiers.prefetch import Fetch, Prefetch, Wanted
from irminsul.tiers.signposts import WINDOW, Named, Signposts
from irminsul.tiers.value import ChunkRows, encoded_bytes

__all__ = ["Fetcher", "Text"]

_LEAST_S = 1.0


@dataclass(frozen=True)
class Text:
    """A prompt's ids (uint32 [n]), whose they are, and the positions that need rows."""

    space: ChunkSpace
    ids: NDArray[np.uint32]
    holes: Sequence[tuple[int, int]]


class Fetcher:
    """Fetches for prompts; each chunk once, however many prompts ask for it.

    Parameters
    ----------
    index : ChunkIndex
        Of the host tier that receives.
    remote : Tier
        The store.
    cost : CostModel
        Decides what is fetched.
    signposts : Signposts, optional
        Finds chunks whose borders are not the prompt's; None asks for the prompt's own only.
    aside : Aside
        Where signposts are looked for.
    """

    def __init__(
        self,
        index: ChunkIndex,
        remote: Tier,
        cost: CostModel,
        signposts: Signposts | None,
        aside: Aside,
    ) -> None:
        self._aside = aside
        self._index = index
        self._host = index.host
        self._remote = remote
        self._cost = cost
        self._signposts = signposts
        self._lock = threading.Lock()
        self._coming: dict[bytes, Fetch] = {}

    def begin(self, text: Text, wanted: Sequence[Wanted], patience_s: float) -> Prefetch:
        """Start to fetch what the store has of `wanted`, or of its text; see `Prefetch`."""
        saved = self._cost.speeds.compute_s(sum(len(part.ref.tokens) for part in wanted))
        prefetch = Prefetch(patience_s, saved)
        asked = self._remote.exists([part.ref for part in wanted], min(patience_s, saved))
        asked.when_over(lambda: self._chunks_said(prefetch, text, wanted, asked.result(0)))
        return prefetch

    def admit(self, fetch: Fetch) -> None:
        """Make findable what `fetch` has brought so far, in the order of the text."""
        with self._lock:
            arrived, fetch.arrived = fetch.arrived, set()
        for part in fetch.wanted:
            if part.ref.key in arrived:
                self._index.add(part.ref, part.before)

    def _chunks_said(
        self, prefetch: Prefetch, text: Text, wanted: Sequence[Wanted], there: list[bool]
    ) -> None:
        """Fetch the chunks that are there, and look for signposts in the others."""
        known = [part for part, is_there in zip(wanted, there, strict=True) if is_there]
        others = [part for part, is_there in zip(wanted, there, strict=True) if not is_there]
        fetches = self._fetch(prefetch, known, [len(part.ref.tokens) for part in known])
        looks = self._signposts is not None and bool(others)
        # First what is expected, then who may take it back.
        prefetch.expect(fetches, more=looks)
        if looks and not self._aside.run(lambda: self._look(prefetch, text, others), urgent=True):
            prefetch.expect([])

    def _look(self, prefetch: Prefetch, text: Text, others: Sequence[Wanted]) -> None:
        """Ask for signposts in what is not there under keys of its own."""
        assert self._signposts is not None
        parts = _within(others, text.holes)
        posts: dict[ChunkRef, int] = {}
        if prefetch.left_s > 0:
            posts = self._signposts.asked(text.space, text.ids, parts)
        prefetch.expect([], more=bool(posts))
        if posts:
            unknown = _marked(len(text.ids), parts)
            asked = self._remote.exists(list(posts), prefetch.left_s)
            asked.when_over(
                lambda: self._posts_said(prefetch, text, unknown, posts, asked.result(0))
            )

    def _posts_said(
        self,
        prefetch: Prefetch,
        text: Text,
        unknown: NDArray[np.bool_],
        posts: dict[ChunkRef, int],
        there: list[bool],
    ) -> None:
        """Read the signposts that are there."""
        refs = [ref for ref, is_there in zip(posts, there, strict=True) if is_there]
        prefetch.expect([], more=bool(refs))
        named: list[Named] = []

        def receive(post: ChunkRows) -> None:
            assert self._signposts is not None
            found = self._signposts.read(post, text.space, text.ids, posts[post.ref])
            if found is None:
                self._host.counts.add("bad_signposts")
                self._remote.discard(post.ref)
            else:
                named.append(found)

        if refs:
            got = self._remote.get(refs, prefetch.left_s, receive)
            got.when_over(lambda: self._named(prefetch, list(named), unknown))

    def _named(
        self, prefetch: Prefetch, named: Sequence[Named], unknown: NDArray[np.bool_]
    ) -> None:
        """Fetch the chunks that signposts name, as far as they cover what is unknown."""
        posts: dict[bytes, list[ChunkRef]] = defaultdict(list)
        for found in named:
            posts[found.ref.key].append(found.post)
        cover = _cover(named, unknown)
        self._host.counts.add("signposts_followed", len(cover))
        parts = [Wanted(found.start, found.ref, None) for found, _ in cover]
        fetches = self._fetch(prefetch, parts, [saves for _, saves in cover])
        prefetch.expect(fetches)
        for fetch in fetches:
            if fetch.ticket is not None:
                fetch.ticket.when_over(partial(self._clear, fetch, posts))

    def _clear(self, fetch: Fetch, posts: dict[bytes, list[ChunkRef]]) -> None:
        """Take signposts away whose chunks are gone: no other could be put in their place."""
        ticket = fetch.ticket
        if ticket is None or ticket.expired or not getattr(self._remote, "up", True):
            return
        for part, arrived in zip(fetch.wanted, ticket.result(0), strict=True):
            for post in () if arrived else posts.get(part.ref.key, ()):
                self._remote.discard(post)

    def _fetch(
        self, prefetch: Prefetch, wanted: Sequence[Wanted], saves: Sequence[int]
    ) -> list[Fetch]:
        """Fetch what is worth it, each saving so many tokens; join fetches that others began."""
        new = [pair for pair in zip(wanted, saves, strict=True) if pair[0].ref not in self._host]
        with self._lock:
            self._coming = {key: f for key, f in self._coming.items() if not f.done}
            coming = self._coming
            keys = [part.ref.key for part, _ in new]
            fetches = list({coming[key] for key in keys if key in coming})
            new = [pair for pair in new if pair[0].ref.key not in coming]
        candidates = [Candidate(encoded_bytes(part.ref), tokens) for part, tokens in new]
        chosen = [new[index][0] for index in self._cost.choose(candidates, prefetch.left_s)]
        if chosen:
            fetch = Fetch(chosen)
            fetches.append(fetch)
            with self._lock:
                self._coming.update((part.ref.key, fetch) for part in chosen)
            self._start(fetch, max(prefetch.left_s, _LEAST_S))
        return fetches

    def _start(self, fetch: Fetch, timeout: float) -> None:
        def receive(part: ChunkRows) -> None:
            if self._host.put([part]).result()[0]:
                with self._lock:
                    fetch.arrived.add(part.ref.key)
            fetch.news_at = time.monotonic()

        ticket = self._remote.get([part.ref for part in fetch.wanted], timeout, receive)
        fetch.ticket = ticket
        ticket.when_over(lambda: self.admit(fetch))


def _cover(named: Sequence[Named], unknown: NDArray[np.bool_]) -> list[tuple[Named, int]]:
    """Return the chunks of `named` that cover `unknown`, and how many new tokens each.

    The longest first: chunks of several versions of one text overlap, and one of them is enough.
    """
    left, found = unknown.copy(), []
    for one in sorted(named, key=lambda one: one.shared, reverse=True):
        part = left[one.start : one.start + one.shared]
        if (saves := int(part.sum())) >= WINDOW:
            part[:] = False
            found.append((one, saves))
    return sorted(found, key=lambda pair: pair[0].start)


def _marked(size: int, parts: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """Return which of `size` positions lie in one of `parts`."""
    marks = np.zeros(size, dtype=np.bool_)
    for start, end in parts:
        marks[start:end] = True
    return marks


def _within(wanted: Sequence[Wanted], holes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return what of `wanted` lies in one of `holes`; neighbours are one part."""
    found: list[tuple[int, int]] = []
    for part in wanted:
        end = part.start + len(part.ref.tokens)
        for low, high in holes:
            first, last = max(part.start, low), min(end, high)
            if first >= last:
                continue
            if found and found[-1][1] == first:
                found[-1] = (found[-1][0], last)
            else:
                found.append((first, last))
    return found
