"""Requests in SGLang's waiting queue -> chunks fetched for them meanwhile, and who still waits.

Knows the scheduler's queue and a registry; must not know trees, batches or tensors.

A request is fetched for when it enters the queue. While its chunks are on their way it stays in the
queue and others pass it, at most as long as computing them would take and never longer than the
patience without news. What comes later is a hole for this request and a hit for the next.

Ranks that serve the same requests must let the same ones go in the same round, so all of them vote
on every request that may wait on one of them, and it goes when all are ready for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from irminsul import Compute
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.tiers import ChunkPool, Prefetch


class FetchQueue:
    """Fetches for requests that wait.

    Parameters
    ----------
    chunks : ChunkPool
        Fetches.
    cache : IrminsulRadixCache
        Whose rows need not be fetched.
    metrics : Metrics
        Counts ``tier_held_requests`` and what failed.
    patience_s : float
        Longest time a request waits without news.
    together : bool
        Other ranks fetch for the same requests.
    """

    def __init__(
        self,
        chunks: ChunkPool,
        cache: Any,
        metrics: Metrics,
        patience_s: float,
        *,
        together: bool = False,
    ) -> None:
        self._chunks = chunks
        self._cache = cache
        self._metrics = metrics
        self._patience_s = patience_s
        self._together = together

    def enter(self, request: Any, namespace_of: Callable[[Any], Any]) -> None:
        """After a request has entered the queue: start to fetch. Never raises."""
        if getattr(request, "irm_waits", False):
            return
        request.irm_prefetch = None
        try:
            request.irm_waits_since = time.monotonic()
            request.irm_prefetch = self._start(request, namespace_of)
        except Exception:
            self._metrics.fallback("tier_fetch", "nothing is fetched for this request")
        request.irm_waits = self._together or request.irm_prefetch is not None

    def waiting(self, queue: Iterable[Any]) -> list[Any]:
        """Return the requests of `queue` that may have to wait, in its order."""
        return [request for request in queue if getattr(request, "irm_waits", False)]

    def ready(self, request: Any) -> bool:
        """Return whether nothing keeps `request` waiting here."""
        prefetch: Prefetch | None = request.irm_prefetch
        return prefetch is None or prefetch.done

    def pass_by(
        self,
        waiting: Sequence[Any],
        ready: Sequence[bool],
        original: Callable[..., Any],
        scheduler: Any,
        *args: Any,
        **kw: Any,
    ) -> Any:
        """Around the scheduler's choice of a prefill batch: without requests that still wait.

        Parameters
        ----------
        waiting, ready
            From `waiting`, and for each whether it goes; the same on every rank.
        original, scheduler, args, kw
            SGLang's call.
        """
        for request, goes in zip(waiting, ready, strict=True):
            if goes:
                self._let_go(request)
        held = {id(request) for request, goes in zip(waiting, ready, strict=True) if not goes}
        if not held:
            return original(scheduler, *args, **kw)
        # The scheduler may have nothing else to do and spin: the threads that fetch need the lock
        # that Python holds meanwhile.
        time.sleep(0)
        queue = scheduler.waiting_queue
        places = {id(request): place for place, request in enumerate(queue)}
        kept = [request for request in queue if id(request) in held]
        scheduler.waiting_queue = [request for request in queue if id(request) not in held]
        try:
            return original(scheduler, *args, **kw)
        finally:
            # New ones, which the call itself may add, go to the end as they would have.
            scheduler.waiting_queue = sorted(
                [*kept, *scheduler.waiting_queue],
                key=lambda request: places.get(id(request), len(places)),
            )

    def _start(self, request: Any, namespace_of: Callable[[Any], Any]) -> Prefetch | None:
        if self._chunks.remote is None:
            return None
        local = self._cache.lookup_namespace(request)
        if local is None:
            return None
        tokens = prompt(request)
        registry = self._cache.mirror.registry
        with registry.lookup(tokens, namespace=local) as plan:
            holes = [(p.start, p.end) for p in plan.segments if isinstance(p, Compute)]
        return self._chunks.prefetch(namespace_of(request), tokens, holes, self._patience_s)

    def _let_go(self, request: Any) -> None:
        """Make findable what has come for `request`, which waits no longer."""
        prefetch: Prefetch | None = request.irm_prefetch
        request.irm_prefetch, request.irm_waits = None, False
        if prefetch is None:
            return
        try:
            self._chunks.admit(prefetch)
        except Exception:
            self._metrics.fallback("tier_fetch", "what was fetched for a request is not used")
        waited = time.monotonic() - request.irm_waits_since
        self._metrics.add("tier_held_requests", 1)
        self._metrics.observe("tier_wait_seconds", waited)


def prompt(request: Any) -> NDArray[np.int64]:
    """Return all ids that `request` will prefill, before SGLang has put them together."""
    parts = (request.origin_input_ids, request.output_ids)
    return np.concatenate([np.array(part, dtype=np.int64) for part in parts])
