"""Sampled windows of chunks <-> small values in a store that say which chunk holds them.

Must not know tiers, hosts or engines.

Behind a change, borders of chunks fall elsewhere until both texts cut at the same place, some 200
tokens later. What stands between is known text, but in chunks whose keys nobody can tell from the
new text. So some windows of 32 tokens, chosen by a hash of their ids alone, have keys too: the
value under one names a chunk that holds the window. Whoever meets the window asks for that chunk,
and finds the part that both texts share as rows are always found: id by id.

A signpost is stored as a chunk of its window, in a namespace of its own, whose rows are the named
chunk's ids: one layer, u32 little-endian, their number first and zeros behind. So it has the key,
the checks and the checksum of any other value. Sampling is part of the format
(``tests/golden/signposts.json``): two engines meet at a window only when both have sampled it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from irminsul import ChunkParams, Namespace
from irminsul._ids import common_prefix
from irminsul.tiers.keys import ChunkRef, ChunkSpace, RowLayout
from irminsul.tiers.value import ChunkRows

__all__ = ["WINDOW", "Named", "Signposts", "sampled"]

WINDOW = 32
# One window of 32 is sampled, so that two of three stretches of 64 shared tokens have one.
_RATE_BITS = 5
# Text can be made to be sampled everywhere; it must not fill the store, nor a request's questions.
_MOST_PER_CHUNK = 32
_MOST_ASKED = 512

_FACTOR = 0x9E3779B97F4A7C15
_INVERSE = pow(_FACTOR, -1, 1 << 64)


class Named(NamedTuple):
    """A chunk that a signpost names.

    ``shared`` is how many tokens around the window it has in common with the text that asked, and
    ``start`` the position of the first of them there.
    """

    ref: ChunkRef
    post: ChunkRef
    start: int
    shared: int


class Signposts:
    """Makes and reads the signposts of chunks of one size.

    Parameters
    ----------
    params : ChunkParams
        Of the chunks; longer ones than ``params.max`` are named by nobody.
    """

    def __init__(self, params: ChunkParams) -> None:
        self._most = params.max
        row_bytes = -(-4 * (params.max + 1) // WINDOW)
        self._layout = RowLayout("signpost-1", 1, row_bytes)

    def of(self, chunk: ChunkRef) -> list[ChunkRows]:
        """Return the signposts to `chunk`, which are to be stored beside it."""
        ids = chunk.tokens
        if len(ids) > self._most:
            return []
        words = np.zeros(WINDOW * self._layout.row_bytes, dtype=np.uint8)
        named = np.concatenate([[len(ids)], ids]).astype("<u4").view(np.uint8)
        words[: len(named)] = named
        rows = words.reshape(1, WINDOW, self._layout.row_bytes)
        space = self._space(chunk.space)
        refs = {space.part(ids, at, at + WINDOW) for at in sampled(ids).tolist()[:_MOST_PER_CHUNK]}
        return [ChunkRows(ref, 0, 0, 0, rows) for ref in refs]

    def asked(
        self, space: ChunkSpace, ids: NDArray[np.uint32], parts: Iterable[tuple[int, int]]
    ) -> dict[ChunkRef, int]:
        """Return the signposts that text may have, with the position of each one's window.

        Parameters
        ----------
        space : ChunkSpace
            Of the chunks.
        ids : ndarray, uint32, [n]
            The text.
        parts : iterable of (start, end)
            Where it matters.
        """
        own, found = self._space(space), dict[ChunkRef, int]()
        for start, end in parts:
            for at in (sampled(ids[start:end]) + start).tolist():
                if len(found) == _MOST_ASKED:
                    return found
                found.setdefault(own.part(ids, at, at + WINDOW), at)
        return found

    def read(
        self, post: ChunkRows, space: ChunkSpace, ids: NDArray[np.uint32], at: int
    ) -> Named | None:
        """Return what a signpost names; None when that is nothing which holds its window.

        Parameters
        ----------
        post : ChunkRows
            As it came from the store.
        space : ChunkSpace
            Of the chunks.
        ids : ndarray, uint32, [n]
            The text that asked.
        at : int
            Where the window stands in it.
        """
        words = post.rows.reshape(-1).view("<u4")
        named = words[1 : 1 + int(words[0])]
        if not WINDOW <= len(named) <= self._most or len(named) != words[0]:
            return None
        place = _place(named, ids[at : at + WINDOW])
        if place is None:
            return None
        before = common_prefix(named[:place][::-1], ids[:at][::-1])
        after = common_prefix(named[place:], ids[at:])
        return Named(space.ref(named), post.ref, at - before, before + after)

    def _space(self, space: ChunkSpace) -> ChunkSpace:
        return _space_of(space, self._layout)


@lru_cache(maxsize=1024)
def _space_of(space: ChunkSpace, layout: RowLayout) -> ChunkSpace:
    """Return the space of signposts to chunks of `space`; no chunk has a key in it."""
    kind = f"{layout.name}-{layout.row_bytes}"
    return ChunkSpace(Namespace(model=space.namespace.encode(), kv_layout=kind), layout)


def sampled(ids: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the first positions of the windows of `ids` that are sampled, ascending.

    Notes
    -----
    Mix the ids plus one by ``x ^= x >> 7; x *= 0xff51afd7ed558ccd; x ^= x >> 33``. The hash of the
    window at ``i`` is the sum of ``x[i + j] * 0x9e3779b97f4a7c15 ** j`` over its 32 ids, mixed by
    ``h ^= h >> 29; h *= 0xc4ceb9fe1a85ec53``, all modulo 2**64. The window is sampled when the
    upper 5 bits of that are zero.
    """
    count = len(ids) - WINDOW + 1
    if count < 1:
        return np.zeros(0, dtype=np.int64)
    powers, inverses = _powers(len(ids))
    mixed = ids.astype(np.uint64) + np.uint64(1)
    mixed ^= mixed >> np.uint64(7)
    mixed *= np.uint64(0xFF51AFD7ED558CCD)
    mixed ^= mixed >> np.uint64(33)
    sums = np.zeros(len(ids) + 1, dtype=np.uint64)
    np.cumsum(mixed * powers, out=sums[1:])
    hashes = (sums[WINDOW:] - sums[:count]) * inverses[:count]
    hashes ^= hashes >> np.uint64(29)
    hashes *= np.uint64(0xC4CEB9FE1A85EC53)
    return np.flatnonzero(hashes >> np.uint64(64 - _RATE_BITS) == 0)


def _powers(count: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the first `count` powers of the factor, and of its inverse, modulo 2**64."""
    size = 1 << max(10, (count - 1).bit_length())
    powers, inverses = _power_table(size)
    return powers[:count], inverses[:count]


@lru_cache(maxsize=12)
def _power_table(size: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    tables = []
    for factor in (_FACTOR, _INVERSE):
        factors = np.full(size, factor, dtype=np.uint64)
        factors[0] = 1
        tables.append(np.cumprod(factors))
    return tables[0], tables[1]


def _place(ids: NDArray[np.uint32], window: NDArray[np.uint32]) -> int | None:
    """Return where `window` first stands in `ids`."""
    views = np.lib.stride_tricks.sliding_window_view(ids, WINDOW)
    places = np.flatnonzero((views == window).all(axis=1))
    return int(places[0]) if len(places) else None
