"""One scheduler process -> its rows beyond the GPU pool: written behind, fetched ahead, used.

Knows the other tier files, the planner's windows and SGLang's requests; decides nothing about
chunks, locks or copies itself.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from irminsul import ChunkParams, Namespace, Policy
from irminsul.errors import HostMismatch, Unsupported
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.settings import Settings, store_fields
from irminsul.integrations.sglang.spans import BatchPlan, HostCopy, Limits, Span, Window
from irminsul.integrations.sglang.tiers import identity
from irminsul.integrations.sglang.tiers import rows as tiers_rows
from irminsul.integrations.sglang.tiers.off import NoTiers
from irminsul.integrations.sglang.tiers.queue import FetchQueue, prompt
from irminsul.integrations.sglang.tiers.rows import HostRows
from irminsul.integrations.sglang.tiers.writer import WriteBehind
from irminsul.rotation import RopeTable
from irminsul.tiers import ChunkPool, CostModel, MooncakeSettings, MooncakeTier

if TYPE_CHECKING:
    from irminsul.integrations.sglang.cache import IrminsulRadixCache

Call = Callable[..., Any]

_ENTER = "sglang.srt.managers.scheduler.Scheduler._add_request_to_queue"
_CHOOSE = "sglang.srt.managers.scheduler.Scheduler._get_new_batch_prefill_raw"

_DEFAULT_HOST_BYTES = 1 << 30
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# A forward of fewer tokens says more about its overhead than about the price of a token.
_TIMED_TOKENS = 128


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

    Raises
    ------
    Unsupported
        The pool's rows cannot be turned on their way from host memory.
    MissingExtra, InvalidParams
        A store is named and cannot be used as named.
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
    ) -> None:
        self.enabled = True
        self._cache = cache
        self._model = model
        self._pool = pool
        self._table = table
        self._metrics = metrics
        self._cost = CostModel()
        self._stream: Any = None
        self._timed: deque[tuple[int, Any, Any]] = deque()
        self._busy: deque[tuple[Any, HostCopy]] = deque()
        layers = pool.kv_buffer
        if layers[0].dtype not in _DTYPES:
            raise Unsupported(
                f"rows of {layers[0].dtype} cannot leave the KV pool yet: unset "
                "IRMINSUL_HOST_BYTES and IRMINSUL_POOL_MASTER, or use a bfloat16 KV cache."
            )
        self.chunks = ChunkPool(
            identity.row_layout(layers, int(getattr(pool, "start_layer", 0) or 0)),
            settings.host_bytes or _DEFAULT_HOST_BYTES,
            _store(settings, self._cost),
            self._cost,
            params=params,
            policy=policy,
            pinned=layers[0].device.type == "cuda",
        )
        self.queue = FetchQueue(self.chunks, cache, metrics, settings.pool_wait)
        self._writer = WriteBehind(
            self.chunks,
            layers,
            cache,
            metrics,
            # A quarter of the pool may be locked for copies; requests need the rest.
            most_tokens=int(pool.size) // 4,
            max_chunk=params.max,
            max_depth=policy.max_depth - 1,
        )
        self._identity = self._identify()

    def fill(self, window: Window, limits: Limits) -> None:
        """Add what host memory can serve of the holes of `window` to its spans. Never raises."""
        try:
            self._fill(window, limits)
        except Exception:
            self._metrics.fallback("tier_plan", "rows in host memory are not used this time")

    def _fill(self, window: Window, limits: Limits) -> None:
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

    def copy(self, plan: BatchPlan) -> None:
        """Write the rows that `plan` takes from host memory, on the forward stream."""
        # A batch may live on for long as the one that decodes: its plan must hold no leases then.
        host, plan.host = plan.host, None
        if host is None:
            return
        tiers_rows.write(host, self._pool.kv_buffer, self._table)
        self._metrics.add("tier_reused_tokens", host.tokens)
        if self._pool.kv_buffer[0].is_cuda:
            copied = _event()
            copied.record()
            # Its leases must outlive the copy, whatever happens to the batch.
            self._busy.append((copied, host))

    def wrote(self, request: Any, leaf: Any, root: Any) -> None:
        """Write the new chunks on the path of `request` behind. Never raises."""
        try:
            self._writer.path(leaf, root, self._namespace(request), self._stream)
        except Exception:
            self._metrics.fallback("tier_write", "rows were not copied to the tiers")

    def reset(self) -> None:
        """Empty the host tier and name the model anew; the store keeps what is under old names."""
        self._writer.reset()
        self.chunks.clear()
        self._identity = self._identify()

    def enter(self, request: Any) -> None:
        """Start to fetch for a request that has entered the waiting queue."""
        self.queue.enter(request, self._namespace)

    def pass_by(self, original: Call, scheduler: Any, *args: Any, **kw: Any) -> Any:
        """Let the scheduler choose among the requests that wait for no fetch."""
        self._writer.unlock()
        self._let_go()
        self._learn()
        self._sample()
        return self.queue.pass_by(original, scheduler, *args, **kw)

    @contextmanager
    def timing(self, forward_batch: Any) -> Iterator[None]:
        """Learn from a prefill what a token costs."""
        if self._pool.kv_buffer[0].is_cuda:
            self._stream = torch.cuda.current_stream()
        tokens = int(getattr(forward_batch, "extend_num_tokens", None) or 0)
        if not forward_batch.forward_mode.is_extend() or tokens < _TIMED_TOKENS:
            yield
            return
        if not self._pool.kv_buffer[0].is_cuda:
            began = time.perf_counter()
            yield
            self._cost.computed(tokens, time.perf_counter() - began)
            return
        began, ended = _event(), _event()
        began.record()
        yield
        ended.record()
        self._timed.append((tokens, began, ended))

    def close(self) -> None:
        """Give threads, memory and processes back."""
        self._writer.close()
        self.chunks.close()

    def _let_go(self) -> None:
        """Give back the leases of copies that are over."""
        while self._busy and self._busy[0][0].query():
            self._busy.popleft()

    def _learn(self) -> None:
        while self._timed and self._timed[0][2].query():
            tokens, began, ended = self._timed.popleft()
            self._cost.computed(tokens, began.elapsed_time(ended) / 1e3)

    def _sample(self) -> None:
        """Publish the tiers' own counts, at most once a second."""
        if not self._metrics.due("tiers"):
            return
        host, remote = self.chunks.host, self.chunks.remote
        self._metrics.gauge("tier_host_bytes", host.used_bytes)
        self._metrics.gauge("tier_link_bytes_per_second", self._cost.speeds.link_bytes_per_s)
        self._metrics.events("host", host.counts.snapshot())
        if remote is not None:
            self._metrics.gauge("tier_store_up", float(getattr(remote, "up", True)))
            self._metrics.events("store", remote.counts.snapshot())

    def _namespace(self, request: Any) -> Namespace:
        known: tuple[object, Namespace] | None = getattr(request, "irm_pool_namespace", None)
        if known is None or known[0] is not self._identity:
            space = Namespace(**self._cache.namespace_fields(request), **self._identity)
            known = request.irm_pool_namespace = (self._identity, space)
        return known[1]

    def _identify(self) -> dict[str, str]:
        layout = self.chunks.layout
        return {
            "model": f"weights-{identity.weights_digest(self._model)}",
            "kv_layout": f"{layout.name}-{layout.layers}x{layout.row_bytes}",
            "rope": f"rope-{identity.rope_digest(self._table)}",
        }


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _store(settings: Settings, cost: CostModel) -> MooncakeTier | None:
    if not settings.pool_master:
        return None
    where = MooncakeSettings(**store_fields(settings))
    return MooncakeTier(where, cost.transferred)


def install(tiers: Tiers) -> None:
    """Put hooks on the scheduler's queue in this process.

    Raises
    ------
    HostMismatch
        SGLang did not apply a hook.

    Notes
    -----
    Here and not where the other hooks are registered: without tiers nothing of this exists.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def entered(result: Any, scheduler: Any, request: Any, *_: Any, **__: Any) -> None:
        tiers.enter(request)

    HookRegistry.register(_ENTER, entered, HookType.AFTER)
    HookRegistry.register(_CHOOSE, tiers.pass_by, HookType.AROUND)
    HookRegistry.apply_hooks()
    missing = [target for target in (_ENTER, _CHOOSE) if target not in HookRegistry._patched]
    if missing:
        raise HostMismatch(
            f"SGLang did not apply irminsul's hooks on {', '.join(missing)}; its log above says "
            "why. Unset IRMINSUL_HOST_BYTES and IRMINSUL_POOL_MASTER, or use another version."
        )
