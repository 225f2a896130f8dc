"""One scheduler process -> its rows beyond the GPU pool: written behind, fetched ahead, used.

Knows the other tier files, the planner's windows and SGLang's requests; decides nothing about
chunks, locks or copies itself.

Several ranks may serve the same requests. What decides the shape of a batch is then the same on
all of them: who still waits and what is locked, by a vote in every round in which there is either;
which rows a prompt takes from host memory, by what all have. The rest is each rank's own.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from irminsul import ChunkParams, Namespace, Policy
from irminsul.integrations.sglang.agreement import Agreement
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.settings import Settings
from irminsul.integrations.sglang.spans import BatchPlan, HostCopy, Limits, Span, Window
from irminsul.integrations.sglang.tiers import common, gauges, identity
from irminsul.integrations.sglang.tiers import rows as tiers_rows
from irminsul.integrations.sglang.tiers.chunks import chunk_pool
from irminsul.integrations.sglang.tiers.clock import PrefillClock, event
from irminsul.integrations.sglang.tiers.off import NoTiers
from irminsul.integrations.sglang.tiers.queue import FetchQueue, prompt
from irminsul.integrations.sglang.tiers.rows import HostRows
from irminsul.integrations.sglang.tiers.writer import WriteBehind
from irminsul.rotation import RopeTable
from irminsul.tiers import CostModel

if TYPE_CHECKING:
    from irminsul.integrations.sglang.tree.cache import IrminsulRadixCache

Call = Callable[..., Any]


class Tiers(NoTiers):
    """Host memory, and a Mooncake Store where one is named.

    Parameters
    ----------
    cache
        The tree whose rows are written behind.
    model : torch.nn.Module
        As loaded; read again after every reset, since its weights may have changed.
    pool
        SGLang's MLA KV pool.
    table : RopeTable
        On the pool's device.
    settings, metrics
        What to do, and what to count.
    params, policy
        Of chunks and lookups; the same as the registry's.
    agreement
        Of the ranks that serve the same requests.

    Raises
    ------
    Unsupported, MissingExtra, InvalidParams
        As `chunk_pool` says.
    """

    def __init__(
        self,
        cache: IrminsulRadixCache,
        model: Any,
        pool: Any,
        table: RopeTable,
        settings: Settings,
        metrics: Metrics,
        params: ChunkParams,
        policy: Policy,
        agreement: Agreement,
    ) -> None:
        self.enabled = True
        self._agreement = agreement
        together = agreement.ranks > 1
        self._cache = cache
        self._model = model
        self._pool = pool
        self._table = table
        self._metrics = metrics
        self._cost = CostModel()
        self._busy: deque[tuple[Any, HostCopy]] = deque()
        self._on_gpu = pool.kv_buffer[0].device.type == "cuda"
        self._clock = PrefillClock(self._cost, on_gpu=self._on_gpu)
        # Rows of MLA are the same on every rank, so one writes them to the store for all.
        publishes = agreement.first
        self.chunks = chunk_pool(pool, settings, self._cost, params, policy, publishes=publishes)
        self.queue = FetchQueue(self.chunks, cache, metrics, settings.pool_wait, together=together)
        self._writer = WriteBehind(
            self.chunks,
            pool.kv_buffer,
            cache,
            metrics,
            # A quarter of the pool may be locked for copies; requests need the rest.
            most_tokens=int(pool.size) // 4,
            max_chunk=params.max,
            max_hops=policy.max_hops - 1,
            max_depth=policy.max_depth - 1,
            together=together,
        )
        # None until a request comes: the first one, or the first after a change.
        self._identity: dict[str, str] | None = None
        self._engine = ""
        # The tree holds rows of weights that were replaced under it.
        self._mixed = False

    def fill(self, window: Window, limits: Limits) -> None:
        """Add what host memory can serve of the holes of `window` to its spans. Never raises."""
        try:
            self._fill(window, limits)
        except Exception:
            self._metrics.fallback("tier_plan", "rows in host memory are not used this time")

    def _fill(self, window: Window, limits: Limits) -> None:
        if self._identity is None:
            return
        namespace = self._namespace(window.request)
        tokens = prompt(window.request)
        found: list[Span] = []
        for part in self.chunks.find(namespace, tokens, window.start):
            rows = tuple((HostRows(lease), at, size) for lease, at, size in part.pieces)
            span = Span(part.start, part.end, part.start - part.source, part.hops, part.depth, rows)
            if max(part.end, part.source + part.end - part.start) > limits.positions:
                continue
            for low, high in window.holes():
                start, end = max(low, span.start), min(high, span.end, window.end - 1)
                if end - start >= limits.min_span:
                    found.append(span.part(start, end))
        if found:
            window.spans = sorted([*window.spans, *found], key=lambda span: span.start)

    def meet(self, window: Window, limits: Limits) -> None:
        """Leave `window` the rows in host memory that every rank has; collective."""
        everyone = self._agreement.gathered(common.described(window.spans))
        kept = [span for span in window.spans if not span.on_host]
        try:
            spans = common.shared(window.spans, everyone)
            kept += [span for span in spans if span.length >= limits.min_span]
        except Exception:
            self._metrics.fallback("tier_plan", "rows in host memory are not used this time")
        window.spans = sorted(kept, key=lambda span: span.start)

    def copy(self, plan: BatchPlan) -> None:
        """Write the rows that `plan` takes from host memory, on the forward stream."""
        # A batch may live on for long as the one that decodes: its plan must hold no leases then.
        host, plan.host = plan.host, None
        if host is None:
            return
        tiers_rows.write(host, self._pool.kv_buffer, self._table)
        self._metrics.add("tier_reused_tokens", host.tokens)
        if self._on_gpu:
            copied = event()
            copied.record()
            # Its leases must outlive the copy, whatever happens to the batch.
            self._busy.append((copied, host))

    def wrote(self, request: Any, leaf: Any, root: Any, trusted: bool = True) -> None:
        """Write the new chunks on the path of `request` behind. Never raises.

        Parameters
        ----------
        request
            Has just put rows in the tree.
        leaf, root
            Ends of its path.
        trusted
            What is recorded about the path is true; otherwise nothing of it is copied.
        """
        if self._mixed or self._identity is None:
            return
        try:
            namespace = self._namespace(request)
            self._writer.path(leaf, root, namespace, self._clock.stream, trusted)
        except Exception:
            self._metrics.fallback("tier_write", "rows were not copied to the tiers")

    def reset(self) -> None:
        """Empty the host tier and name the model anew; the store keeps what is under old names."""
        self._writer.reset()
        self.chunks.clear()
        self._identity = None
        self._mixed = False

    def new_weights(self) -> None:
        """Before the weights change: other rows have another name from now on.

        Until the tree is emptied it holds rows of both, and rows that saw both: nothing is written.
        """
        self._identity = None
        self._mixed = True

    def finish_weights(self) -> None:
        """Before a session of updates ends, which may finish the weights' layout.

        What nobody has used since the tree was emptied needs no emptying again.
        """
        if self._identity is not None:
            self.new_weights()

    def enter(self, request: Any) -> None:
        """Start to fetch for a request that has entered the waiting queue."""
        self._name()
        self.queue.enter(request, self._namespace)

    def pass_by(self, original: Call, scheduler: Any, *args: Any, **kw: Any) -> Any:
        """Let the scheduler choose among the requests that wait for no fetch."""
        if scheduler.waiting_queue:
            self._name()
        self._let_go()
        self._clock.learn()
        gauges.publish(self.chunks, self._cost, self._metrics)
        waiting = self.queue.waiting(scheduler.waiting_queue)
        votes = [self._writer.copied, *(self.queue.ready(request) for request in waiting)]
        if waiting or self._writer.locked_tokens:
            votes = self._agreement.least(votes)
        self._writer.unlock(votes[0])
        ready = [bool(vote) for vote in votes[1:]]
        return self.queue.pass_by(waiting, ready, original, scheduler, *args, **kw)

    def timing(self, forward_batch: Any) -> AbstractContextManager[None]:
        """Learn from a prefill what a token costs."""
        return self._clock.timing(forward_batch)

    def close(self) -> None:
        """Give threads, memory and processes back."""
        self._writer.close()
        self.chunks.close()

    def _let_go(self) -> None:
        """Give back the leases of copies that are over."""
        while self._busy and self._busy[0][0].query():
            self._busy.popleft()

    def _namespace(self, request: Any) -> Namespace:
        known: tuple[object, Namespace] | None = getattr(request, "irm_pool_namespace", None)
        named = self._identity
        assert named is not None  # callers have looked
        if known is None or known[0] is not named:
            fields = identity.request_fields(self._cache.namespace_fields(request), self._engine)
            space = Namespace(**fields, **named)
            known = request.irm_pool_namespace = (named, space)
        return known[1]

    def _name(self) -> None:
        """Find out whose rows these are, if that is open; collective, so every rank must ask.

        Not when the tree is emptied: weights may be away at that moment, or half replaced.
        """
        if self._identity is not None:
            return
        layout = self.chunks.layout
        said = self._agreement.gathered((self._digest(), uuid.uuid4().hex))
        digests, (self._engine, *_) = zip(*said, strict=True)
        self._identity = {
            "model": f"weights-{identity.joined(digests)}",
            "kv_layout": f"{layout.name}-{layout.layers}x{layout.row_bytes}",
            "rope": f"rope-{identity.rope_digest(self._table)}",
        }

    def _digest(self) -> str:
        try:
            return identity.weights_digest(self._model)
        except Exception:
            self._metrics.fallback("tier_identity", "rows of this engine are nobody else's")
            return uuid.uuid4().hex
