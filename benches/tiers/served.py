"""Documents in a store and prompts that hold them -> how long requests waited, and what they got.

Serves requests as SGLang's scheduler does with tiers, without an engine: ask when the request
enters, look every half millisecond whether it still waits, take what has come, find it. Every row
says which token and position it is of, so every row that is found can be checked.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from irminsul import Namespace, Policy
from irminsul.tiers import ChunkPool, ChunkRows, CostModel, MooncakeTier, Prefetch, RowLayout
from tiers.mooncake_store import Store

LAYOUT = RowLayout("bench", 3, 1152)
SPACE = Namespace(model="faults")
# The plugin's default.
PATIENCE_S = 0.04
HOST_BYTES, ARENA_BYTES, QUEUE_BYTES = 48 << 20, 32 << 20, 32 << 20
DOCUMENT = 1500


@dataclass
class Seen:
    """What requests met."""

    stalls: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    reused: int = 0
    wrong: int = 0


def truth(ids: Any, base: int) -> Any:
    """Return the rows of a chunk: every 8 bytes say which token and which position."""
    rows = np.zeros((LAYOUT.layers, len(ids), LAYOUT.row_bytes // 8, 2), dtype=np.uint32)
    rows[..., 0] = ids[None, :, None]
    rows[..., 1] = base + np.arange(len(ids), dtype=np.uint32)[None, :, None]
    return rows.view(np.uint8).reshape(LAYOUT.layers, len(ids), LAYOUT.row_bytes)


def document(seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, 1 << 17, DOCUMENT)


def computed(pool: ChunkPool, seed: int) -> list[ChunkRows]:
    """Return the chunks of a document as an engine computes them."""
    ids = document(seed)
    return [
        ChunkRows(part.ref, part.start, 0, 0, truth(part.ref.tokens, part.start))
        for part in pool.chunks(SPACE, ids, [(0, len(ids))])
    ]


def written(pool: ChunkPool, seed: int) -> None:
    """Keep the chunks of a document as an engine that computed it."""
    pool.keep(computed(pool, seed))


def pool_on(store: Store, **settings: Any) -> ChunkPool:
    fields = {"arena_bytes": ARENA_BYTES, "queue_bytes": QUEUE_BYTES, "hang_s": 0.5}
    tier = MooncakeTier(store.settings(**fields, retry_most_s=0.5, **settings))
    assert tier.wait_until_up(30.0)
    # As if computing were slow: everything is worth fetching.
    cost = CostModel(prefill_s_per_token=1e-2)
    return ChunkPool(LAYOUT, HOST_BYTES, tier, cost, policy=Policy())


class Request:
    """One prompt that holds document `seed` behind a header of its own, from its arrival on.

    A stall is the time that it waits beyond its last news, the call that starts the fetch included.
    """

    def __init__(self, pool: ChunkPool, seed: int, number: int) -> None:
        header = np.random.default_rng(1 << 20 | number).integers(0, 1 << 17, 40 + number % 50)
        self._pool = pool
        self._prompt = np.concatenate([header, document(seed), header[:9]])
        self._entered = time.monotonic()
        holes = [(0, len(self._prompt))]
        self._prefetch: Prefetch | None = pool.prefetch(SPACE, self._prompt, holes, PATIENCE_S)
        self._asked = time.monotonic()

    def over(self, seen: Seen) -> bool:
        """Return whether it waits no longer; then take what has come, and note how long it was."""
        prefetch, now = self._prefetch, time.monotonic()
        if prefetch is not None and not prefetch.done:
            return False
        news = self._entered
        if prefetch is None:
            now = self._asked  # it waited for nothing, whenever somebody looks
        else:
            news = prefetch.news_at
            self._pool.admit(prefetch)
        seen.stalls.append(max(0.0, now - news))
        seen.waits.append(now - self._entered)
        return True

    def check(self, seen: Seen) -> None:
        """Compare what host memory has for it with what it must be."""
        check(self._pool, self._prompt, seen)


def request(pool: ChunkPool, seed: int, number: int, seen: Seen) -> None:
    """Serve one prompt alone."""
    served = Request(pool, seed, number)
    while not served.over(seen):
        time.sleep(0.0005)
    served.check(seen)


def check(pool: ChunkPool, prompt: Any, seen: Seen) -> None:
    for span in pool.find(SPACE, prompt, 0):
        position, source = span.start, span.source
        for lease, at, size in span.pieces:
            rows = lease.chunk.rows[:, at : at + size]
            good = truth(prompt[position : position + size].astype(np.uint32), source)
            seen.wrong += int((rows != good).any(axis=2).sum())
            seen.reused += size
            position, source = position + size, source + size
        span.release()


@contextlib.contextmanager
def ticking() -> Iterator[list[float]]:
    """Tick every millisecond beside the block; yields how late ticks were."""
    late: list[float] = [0.0]
    over = threading.Event()

    def tick() -> None:
        while not over.is_set():
            began = time.monotonic()
            time.sleep(0.001)
            late.append(time.monotonic() - began - 0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        yield late
    finally:
        over.set()
        thread.join()


def summary(seen: Seen, late: list[float], pool: ChunkPool) -> dict[str, Any]:
    ordered = sorted(seen.stalls)
    return {
        "requests": len(ordered),
        "median_stall_ms": round(1e3 * ordered[len(ordered) // 2], 2),
        "longest_stall_ms": round(1e3 * ordered[-1], 2),
        "longest_wait_ms": round(1e3 * max(seen.waits), 2),
        "machine_longest_ms": round(1e3 * max(late), 2),
        "wrong_rows": seen.wrong,
        "reused_tokens": seen.reused,
        "store": {k: v for k, v in pool.remote.counts.snapshot().items() if "bytes" not in k},
    }
