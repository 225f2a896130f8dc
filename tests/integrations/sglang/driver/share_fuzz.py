"""A seed -> random sessions that borrow on the real tree, pool and requests, and the lies they met.

``truth`` holds, for every slot, the token and position whose row it would hold; a free slot holds
nothing. After every step each running request is asked, through the tiles that attention would
read, what its positions hold, and SGLang's own sum of all slots is made.
"""

from __future__ import annotations

import json
import random
import sys
from array import array
from types import SimpleNamespace
from typing import Any

import torch
from irminsul import Policy, Registry
from irminsul.demo import cpu_host

cpu_host._pin_nothing()

from irminsul.attention import PAGE_SIZE  # noqa: E402
from irminsul.integrations.sglang import finding, planner  # noqa: E402
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

PAGES, REQUESTS, WIDTH, ENTRIES = 110, 6, 4096, 3
SIZE = PAGES * PAGE_SIZE
NOTHING = -1


class Fuzz:
    def __init__(self, seed: int) -> None:
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
        self.tokens = torch.full((SIZE + PAGE_SIZE,), NOTHING)
        self.positions = torch.full((SIZE + PAGE_SIZE,), NOTHING)
        self.documents = [self.text(self.random.randint(300, 1100)) for _ in range(5)]
        self.running: list[Any] = []
        self.told: list[list[int]] = []
        self.facts = {
            "lies": 0, "read": 0, "most_borrowed": 0, "next_turns": 0, "ends": [0, 0, 0],
            "evicted": 0, "rounds": 0,
        }  # fmt: skip

    def text(self, length: int) -> list[int]:
        return [self.random.randrange(2, 4096) for _ in range(length)]

    def prompt(self, header: list[int]) -> list[int]:
        """A new session, or the next turn of one that has ended."""
        if self.told and self.random.random() < 0.3:
            self.facts["next_turns"] += 1
            return self.random.choice(self.told) + self.text(self.random.randint(3, 90))
        parts = header + self.text(self.random.randint(0, 200))
        for _ in range(self.random.randint(1, 2)):
            parts += self.random.choice(self.documents) + self.text(self.random.randint(1, 90))
        return parts

    # One request, as the scheduler treats it.

    def begin(self) -> None:
        """One batch: all of it is matched and runs before any of it is published.

        Two requests of one batch may both compute the same new header, of which the tree keeps one.
        """
        header = self.text(self.random.randint(70, 200)) if self.random.random() < 0.6 else []
        batch = [self.admit(header) for _ in range(self.random.randint(1, 2))]
        for request in batch:
            if request is not None:
                self.publish(request, self.length(request))
                self.running.append(request)

    def admit(self, header: list[int]) -> Any:
        ids = array("q", self.prompt(header)[: WIDTH - 600])
        request = Req("r", "", array("q", ids), SamplingParams(max_new_tokens=4))
        request.full_untruncated_fill_ids = array("q", ids)
        prefix = self.match(request, ids)
        end = len(ids)
        if end - prefix > 300 and self.random.random() < 0.4:
            end = self.random.randint(prefix + 100, end)
        return request if self.prefill(request, prefix, end) else None

    def match(self, request: Any, ids: array[int]) -> int:
        key = RadixKey(ids[: len(ids) - 1], None)
        found = self.cache.match_prefix(MatchPrefixParams(key=key, req=request))
        request.last_node = found.last_device_node
        if hasattr(request, "prefix_len"):
            request.prefix_len = found.device_prefix_len
            request.kv.cache_protected_len = found.device_prefix_len
            request.lock = self.cache.lock(found.last_device_node)
            return int(found.device_prefix_len)
        request.prefix_indices = found.device_indices
        request.cache_protected_len = len(found.device_indices)
        self.cache.inc_lock_ref(found.last_device_node)
        return len(found.device_indices)

    def prefill(self, request: Any, start: int, end: int) -> bool:
        """One round of a prompt: slots, spans, what is moved and computed."""
        ids = request.full_untruncated_fill_ids
        whole = Window(request, start, len(ids))
        namespace = self.cache.lookup_namespace(request)
        finding.find_spans(whole, self.cache.mirror, namespace, self.limits, self.metrics)
        window = Window(request, start, end, whole.spans, whole.changes)
        window.cut(end)
        slots = self.allocate(start, end, self.row_slots(request, start))
        if slots is None:
            self.drop(request)
            return False
        self.adopt(request, start, end, slots)
        finding.follow(window, self.cache.mirror, self.metrics)
        moved, lent = self.sharing.divide([window], planner._placed([window], slots)[0])
        spans = [(span.start, span.end) for span in window.spans]
        self.compute(ids, start, end, slots, spans)
        for span, target in moved:
            self.move(span, target)
        history = planner._history(window)
        self.sharing.lend(lent)
        request.irm_moved = history
        self.sharing.flush()
        self.facts["most_borrowed"] = max(self.facts["most_borrowed"], self.sharing.tokens)
        self.facts["rounds"] += 1
        return True

    def row_slots(self, request: Any, length: int) -> torch.Tensor:
        """What stands before a round: the request's row, or its match in the tree."""
        row = self.row_of(request)
        if row is not None:
            return self.table[row, :length].to(torch.int64)
        if hasattr(request, "prefix_len"):
            return self.cache.path_device_indices(request.last_node)[:length]
        return request.prefix_indices

    def row_of(self, request: Any) -> int | None:
        return request.kv.req_pool_idx if hasattr(request, "prefix_len") else request.req_pool_idx

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
        else:
            request.set_extend_range(0, end)
            request.kv = SimpleNamespace(kv_allocated_len=end, swa_evicted_seqlen=0)
            request.kv_committed_len = end
            request.inflight_middle_chunks = 1

    def compute(
        self,
        ids: array[int],
        start: int,
        end: int,
        slots: torch.Tensor,
        spans: list[tuple[int, int]],
    ) -> None:
        places = torch.arange(start, end)
        here = torch.ones(end - start, dtype=torch.bool)
        for low, high in spans:
            here[low - start : high - start] = False
        self.tokens[slots[here]] = torch.tensor(list(ids[start:end]))[here]
        self.positions[slots[here]] = places[here]

    def move(self, span: Any, target: torch.Tensor) -> None:
        source = torch.cat([node.value[at : at + count] for node, at, count in span.rows])
        self.tokens[target] = self.tokens[source]
        self.positions[target] = self.positions[source] + span.delta

    def publish(self, request: Any, end: int) -> None:
        if hasattr(request, "prefix_len"):
            common.checkpoint_kv_cache(request, self.cache)
        else:
            self.cache.cache_unfinished_req(request)
        self.poison()

    def go_on(self, request: Any) -> None:
        """The next round of a prompt, or some decode steps."""
        done = self.length(request)
        prompt = len(request.origin_input_ids)
        if done < prompt:
            end = self.random.choice([prompt, min(prompt, done + 70)])
            if self.prefill(request, done, end):
                self.publish(request, end)
            else:
                self.running.remove(request)
            return
        for _ in range(self.random.randint(1, 90)):
            slots = self.allocate(done, done + 1, self.row_slots(request, done))
            if slots is None:
                self.end(request, 2)
                return
            token = self.random.randrange(2, 4096)
            request.output_ids.append(token)
            self.table[self.row_of(request), done] = int(slots[0])
            self.tokens[slots], self.positions[slots] = token, done
            done += 1
            self.lengths(request, done)

    def length(self, request: Any) -> int:
        held = request.kv
        return int(held.kv_allocated_len)

    def end(self, request: Any, how: int) -> None:
        """0 finishes, 1 aborts, 2 retracts; a prompt that is not through cannot finish."""
        if self.length(request) < len(request.origin_input_ids) and how == 0:
            how = 1
        self.facts["ends"][how] += 1
        self.running.remove(request)
        if how == 0:
            request.finished_reason = SimpleNamespace()
            self.told.append([*request.origin_input_ids, *request.output_ids])
        self.release(request, keep=how == 0)

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

    # What must hold.

    def free_pages(self) -> torch.Tensor:
        if hasattr(self.pool, "get_all_free_pages"):
            return self.pool.get_all_free_pages()
        return torch.cat([self.pool.free_pages, self.pool.release_pages])

    def poison(self) -> None:
        slots = (self.free_pages()[:, None] * PAGE_SIZE + torch.arange(PAGE_SIZE)).flatten()
        self.tokens[slots] = self.positions[slots] = NOTHING

    def check(self) -> None:
        free = self.free_pages()
        assert 0 not in free
        assert len(free.unique()) == len(free)
        own = 0
        for request in self.running:
            self.read(request)
            held = request.kv if hasattr(request, "prefix_len") else request
            own += -(-self.length(request) // PAGE_SIZE) * PAGE_SIZE - held.cache_protected_len
        parts = self.pool.available_size(), self.cache.evictable_size(), self.cache.protected_size()
        assert sum(parts) + own == SIZE, (*parts, own)

    def read(self, request: Any) -> None:
        """Ask the tiles of `request` what its positions hold."""
        length = self.length(request)
        row = torch.tensor([self.row_of(request)])
        tiles = self.tables.compose(self.table, row, torch.tensor([length], dtype=torch.int32))
        count = int(tiles.count[0])
        got = [
            (page * PAGE_SIZE + slot, pos0 + slot - lo, delta)
            for (page, _, delta, pos0), lo, hi in zip(
                tiles.tiles[:count].tolist(),
                tiles.lo[:count].tolist(),
                tiles.hi[:count].tolist(),
                strict=True,
            )
            for slot in range(lo, hi)
        ]
        slots, places, deltas = torch.tensor(got).T
        assert places.tolist() == list(range(length))
        ids = torch.tensor([*request.origin_input_ids, *request.output_ids][:length])
        wrong = (self.tokens[slots] != ids) | (self.positions[slots] + deltas != places)
        self.facts["lies"] += int(wrong.sum())
        self.facts["read"] += length

    def run(self, steps: int) -> dict[str, Any]:
        for _ in range(steps):
            choice = self.random.random()
            if len(self.running) < REQUESTS - 2 and choice < 0.45:
                self.begin()
            elif self.running and choice < 0.75:
                self.go_on(self.random.choice(self.running))
            elif self.running:
                self.end(self.random.choice(self.running), self.random.choice([0, 0, 1, 2]))
            self.check()
        while self.running:
            self.end(self.running[0], 0)
            self.check()
        assert self.cache.protected_size() == self.sharing.tokens == 0
        assert sorted(self.sharing._unused) == list(range(1, ENTRIES + 1))
        assert self.rows.available_size() == REQUESTS
        self.cache.evict(EvictParams(num_tokens=SIZE))
        assert self.pool.available_size() == SIZE
        return self.facts | {
            "broken": self.cache.mirror.broken,
            "borrowed": self.metrics.counts["borrowed_tokens"],
            "fallback": dict(self.metrics.fallbacks),
        }


def main() -> None:
    # What a request has beyond what it asked for, and needs the server's arguments.
    common._release_overallocated_kv_indices = lambda *_: None
    Req.effective_kv_committed_len = lambda request: request.kv_committed_len
    Req.owned_kv_len = lambda request: request.kv.kv_committed_len
    for seed in range(3):
        print("FACTS", json.dumps(Fuzz(seed).run(int(sys.argv[1]))), flush=True)


if __name__ == "__main__":
    main()
