"""SGLang's tree, pool and requests, driven as its scheduler does -> requests that borrow.

Nothing is computed: `share_truth` keeps what each slot's row would hold.
"""

from __future__ import annotations

import random
from array import array
from types import SimpleNamespace
from typing import Any

import torch
from irminsul import Policy, Registry
from irminsul.demo import cpu_host

cpu_host._pin_nothing()

from irminsul.attention import PAGE_SIZE  # noqa: E402
from irminsul.integrations.sglang.admission import finding  # noqa: E402
from irminsul.integrations.sglang.batch import numbers, planner  # noqa: E402
from irminsul.integrations.sglang.metrics import Metrics  # noqa: E402
from irminsul.integrations.sglang.settings import Settings  # noqa: E402
from irminsul.integrations.sglang.share.cache import SharingRadixCache  # noqa: E402
from irminsul.integrations.sglang.share.lending import Sharing  # noqa: E402
from irminsul.integrations.sglang.share.tables import LoanTables  # noqa: E402
from irminsul.integrations.sglang.spans import Limits, Window  # noqa: E402
from irminsul.rotation import RopeTable  # noqa: E402
from sglang.srt.managers.schedule_batch import Req  # noqa: E402
from sglang.srt.mem_cache import common  # noqa: E402
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, MatchPrefixParams  # noqa: E402
from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # noqa: E402
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool  # noqa: E402
from sglang.srt.mem_cache.radix_cache import RadixKey  # noqa: E402
from sglang.srt.sampling.sampling_params import SamplingParams  # noqa: E402
from share_truth import DEPTH, HOPS, SIZE, Truth  # noqa: E402

REQUESTS, WIDTH, ENTRIES = 6, 4096, 3

# What a request has beyond what it asked for, and needs the server's arguments.
common._release_overallocated_kv_indices = lambda *_: None
Req.effective_kv_committed_len = lambda request: getattr(
    request, "kv_committed_len", getattr(request.kv, "kv_committed_len", None)
)
Req.owned_kv_len = lambda request: request.kv.kv_committed_len

Round = tuple[Any, int, int]  # a request, and the positions of its prompt that it prefills


class Parts(Truth):
    """The parts of one scheduler, with `running` requests."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        arguments = {"dtype": torch.bfloat16, "device": "cpu", "kvcache": None, "need_sort": False}
        self.pool = PagedTokenToKVPoolAllocator(SIZE, PAGE_SIZE, **arguments)
        self.rows = ReqToTokenPool(REQUESTS, WIDTH, "cpu", False)
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.pool,
            page_size=PAGE_SIZE,
        )
        registry = Registry(SIZE, policy=Policy(sink_tokens=0, min_span=16, min_gain=0))
        self.metrics = Metrics(60.0)
        settings = Settings(reuse="share")
        self.cache = SharingRadixCache(params, registry, {"model": "m"}, settings, self.metrics)
        angles = torch.cat([torch.ones(WIDTH, 32), torch.zeros(WIDTH, 32)], dim=1)
        self.table = self.rows.req_to_token
        self.tables = LoanTables(ENTRIES, self.table, RopeTable(angles, interleaved=True))
        self.sharing = self.cache.sharing = Sharing(self.cache, self.tables, self.metrics)
        self.limits = Limits(64, 10**6, 16, WIDTH)
        self.facts |= dict.fromkeys(
            ("evicted", "rounds", "most_borrowed", "batches_of_borrowers"), 0
        )

    def request(self, ids: list[int], tenant: int, exact: bool) -> Any:
        key = [None, "another"][tenant]
        options = {"custom_params": {"irminsul": False}} if exact else {}
        sampling = SamplingParams(max_new_tokens=4, **options)
        made = Req("r", "", array("q", ids), sampling, extra_key=key)
        made.full_untruncated_fill_ids = array("q", ids)
        made.tenant, made.exact = tenant, exact
        return made

    def match(self, request: Any) -> int:
        ids = request.full_untruncated_fill_ids
        key = RadixKey(ids[: len(ids) - 1], request.extra_key)
        found = self.cache.match_prefix(MatchPrefixParams(key=key, req=request))
        request.last_node = found.last_device_node
        if hasattr(request, "prefix_len"):
            request.prefix_len = found.device_prefix_len
            request.kv.cache_protected_len = found.device_prefix_len
            request.lock = self.cache.lock(found.last_device_node)
            return int(found.device_prefix_len)
        request.prefix_indices = found.device_indices
        self.held(request).cache_protected_len = len(found.device_indices)
        self.cache.inc_lock_ref(found.last_device_node)
        return len(found.device_indices)

    def prefill(self, rounds: list[Round]) -> list[Any]:
        """Run one batch; return the requests that there was room for."""
        found, slots = [], []
        for request, start, end in rounds:
            window = self.found(request, start, end)
            given = self.allocate(start, end, self.row_slots(request, start))
            if given is None:
                self.drop(request)
                continue
            self.adopt(request, start, end, given)
            found.append(window)
            slots.append(given)
        if found:
            self.forward(found, slots)
        return [window.request for window in found]

    def found(self, request: Any, start: int, end: int) -> Window:
        whole = Window(request, start, len(request.full_untruncated_fill_ids))
        planner.forget_produced_again(whole)
        namespace = self.cache.lookup_namespace(request)
        if namespace is not None:
            finding.find_spans(whole, self.cache.mirror, namespace, self.limits, self.metrics)
        window = Window(request, start, end, whole.spans, whole.changes)
        window.cut(end)
        return window

    def forward(self, windows: list[Window], slots: list[torch.Tensor]) -> None:
        """Plan as one, then compute, move and lend."""
        for window in windows:
            finding.follow(window, self.cache.mirror, self.metrics)
        placed = numbers.placed(windows, torch.cat(slots))[0]
        moved, lent = self.sharing.divide(windows, placed)
        for window, own in zip(windows, slots, strict=True):
            self.compute(window, own)
        for span, target in moved:
            self.move(span, target)
        histories = [planner._history(window) for window in windows]
        self.sharing.secure(lent)
        self.sharing.lend(lent)
        for window, history in zip(windows, histories, strict=True):
            window.request.irm_moved = history
        self.sharing.flush()
        self.facts["most_borrowed"] = max(self.facts["most_borrowed"], self.sharing.tokens)
        self.facts["batches_of_borrowers"] += lent is not None and len(lent.parts) > 1
        self.facts["rounds"] += 1

    def row_slots(self, request: Any, length: int) -> torch.Tensor:
        """What stands before a round: the request's row, or its match in the tree."""
        row = self.row_of(request)
        if row is not None:
            return self.table[row, :length].to(torch.int64)
        if hasattr(request, "prefix_len"):
            return self.cache.path_device_indices(request.last_node)[:length]
        return request.prefix_indices

    def allocate(self, start: int, end: int, before: torch.Tensor) -> torch.Tensor | None:
        """Slots of positions ``[start, end)``: the rest of a page, then whole ones."""
        inside = -start % PAGE_SIZE
        parts = []
        if inside:
            parts.append(before[-1] + 1 + torch.arange(min(inside, end - start)))
        pages = -(-max(0, end - start - inside) // PAGE_SIZE)
        if pages * PAGE_SIZE > self.pool.available_size():
            self.facts["evicted"] += 1
            self.cache.evict(EvictParams(num_tokens=pages * PAGE_SIZE))
            self.poison()
        if pages * PAGE_SIZE > self.pool.available_size():
            return None
        if pages:
            fresh = self.pool.alloc(pages * PAGE_SIZE)
            parts.append(fresh[: end - start - inside])
        return torch.cat(parts).to(torch.int64) if parts else before.new_empty(0)

    def adopt(self, request: Any, start: int, end: int, slots: torch.Tensor) -> None:
        """Write the row, as SGLang does after allocation."""
        before = self.row_slots(request, start)
        if self.row_of(request) is None:
            self.rows.alloc([request])
        row = self.row_of(request)
        self.table[row, :start] = before.int()
        self.table[row, start:end] = slots.int()
        self.lengths(request, end)

    def lengths(self, request: Any, end: int) -> None:
        if hasattr(request, "prefix_len"):
            request.extend_end = end
            request.kv.kv_allocated_len = request.kv.kv_committed_len = end
            return
        request.set_extend_range(0, end)
        request.inflight_middle_chunks = 1
        if self.held(request) is request:
            request.kv = SimpleNamespace(kv_allocated_len=end, swa_evicted_seqlen=0)
            request.kv_committed_len = end
        else:
            request.kv.kv_allocated_len = request.kv.kv_committed_len = end

    def compute(self, window: Window, slots: torch.Tensor) -> None:
        """Fill what lies outside of spans; each row is as approximate as any before it."""
        request, start = window.request, window.start
        ids = torch.tensor(request.full_untruncated_fill_ids)
        context = self.context(request, start)
        spans = iter(window.spans)
        for low, high in window.holes():
            own = slots[low - start : high - start]
            self.fill(own, ids[low:high], torch.arange(low, high), request.tenant, context)
            span = next(spans, None)
            if span is not None:
                source = self.source(span)
                self.facts["shallow"] += bool((self.truth[DEPTH, source] > span.depth).any())
                self.facts["shallow"] += bool((self.truth[HOPS, source] > span.hops).any())
                context = max(context, int(self.truth[DEPTH, source].max()) + 1)

    def publish(self, request: Any) -> None:
        if hasattr(request, "prefix_len"):
            common.checkpoint_kv_cache(request, self.cache)
        else:
            self.cache.cache_unfinished_req(request)
        self.poison()

    def grow(self, request: Any, tokens: list[int]) -> bool:
        """Decode `tokens`, one by one; False when there is no room."""
        context, row = self.context(request, self.length(request)), self.row_of(request)
        for done, token in enumerate(tokens, self.length(request)):
            slots = self.allocate(done, done + 1, self.table[row, done - 1 : done].long())
            if slots is None:
                return False
            request.output_ids.append(token)
            self.table[row, done] = int(slots[0])
            self.fill(slots, token, done, request.tenant, context)
            self.lengths(request, done + 1)
        return True

    def release(self, request: Any, keep: bool) -> None:
        if hasattr(request, "prefix_len"):
            common.release_kv_cache(request, self.cache, checkpoint=keep)
        else:
            common.release_kv_cache(request, self.cache, is_insert=keep)
        self.sharing.flush()
        self.poison()

    def drop(self, request: Any) -> None:
        """No room: give back what it holds, or only its lock."""
        if self.row_of(request) is not None:
            self.release(request, keep=False)
        elif hasattr(request, "prefix_len"):
            self.cache.unlock(request.lock)
        else:
            self.cache.dec_lock_ref(request.last_node)
