"""A seed -> random traffic on the real radix tree and allocator, and the lies it found.

``truth`` holds, for every slot, the token and position whose row it would hold. A slot that is
freed holds nothing. Whatever the mirror hands out must agree with it.
"""

from __future__ import annotations

import json
import random
import sys
from array import array
from types import SimpleNamespace
from typing import Any

import torch
from irminsul import Policy, Registry, Reuse
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.settings import Settings
from irminsul.integrations.sglang.tree.cache import IrminsulRadixCache
from irminsul.integrations.sglang.tree.nodes import record_of
from irminsul.integrations.sglang.tree.provenance import Moved
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixKey

SIZE = 1600
NOTHING = -1


class Fuzz:
    def __init__(self, seed: int, page: int, capacity: int) -> None:
        self.random = random.Random(seed)
        self.page = page
        allocator = TokenToKVPoolAllocator if page == 1 else PagedTokenToKVPoolAllocator
        arguments = {"size": SIZE, "dtype": torch.bfloat16, "device": "cpu", "kvcache": None}
        if page > 1:
            arguments["page_size"] = page
        self.pool = allocator(need_sort=False, **arguments)
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=self.pool,
            page_size=page,
        )
        registry = Registry(capacity, policy=Policy(sink_tokens=0, min_span=8, min_gain=0))
        self.metrics = Metrics(60.0)
        self.cache = IrminsulRadixCache(params, registry, {"model": "m"}, Settings(), self.metrics)
        self.tokens = torch.full((SIZE + page,), NOTHING)
        self.positions = torch.full((SIZE + page,), NOTHING)
        self.documents = [self.text(self.random.randint(40, 300)) for _ in range(12)]
        self.facts = {"pieces": 0, "lies": 0, "unresolved": 0, "reused": 0, "tenants_mixed": 0}
        self.tenants = torch.full((SIZE + page,), NOTHING)

    def text(self, length: int) -> list[int]:
        return [self.random.randrange(2, 4096) for _ in range(length)]

    def prompt(self) -> list[int]:
        parts: list[int] = self.text(self.random.randint(0, 20))
        for _ in range(self.random.randint(1, 2)):
            parts += self.random.choice(self.documents) + self.text(self.random.randint(0, 6))
        return parts

    def request(self, ids: list[int], tenant: int) -> Any:
        return SimpleNamespace(
            rid="r",
            extra_key=["a", "b"][tenant],
            cache_salt=None,
            lora_id=None,
            multimodal_inputs=None,
            input_embeds=None,
            positional_embed_overrides=None,
            return_hidden_states=False,
            return_logprob=False,
            logprob_start_len=-1,
            origin_input_ids=ids,
            sampling_params=SimpleNamespace(
                custom_params={"irminsul": False} if self.random.random() < 0.2 else None
            ),
        )

    def serve(self) -> None:
        """One request: match, look up, allocate, move or compute, insert, free duplicates."""
        ids = self.prompt()
        length = len(ids) // self.page * self.page
        if not length:
            return
        tenant = self.random.randrange(2)
        request = self.request(ids, tenant)
        tokens = array("q", ids)
        key = RadixKey(tokens[:length], request.extra_key)
        matched = self.matched(key, request)
        need = length - len(matched)
        lock = self.cache.inc_lock_ref(self.last) if len(matched) else None
        if self.pool.available_size() < need:
            self.cache.evict(EvictParams(num_tokens=need))
            self.poison()
        fresh = self.pool.alloc(need) if need else torch.empty(0, dtype=torch.int64)
        if fresh is not None:
            self.fill(request, tokens, matched, fresh.to(torch.int64), length, tenant)
        if lock is not None:
            self.cache.dec_lock_ref(self.last)

    def matched(self, key: RadixKey, request: Any) -> torch.Tensor:
        result = self.cache.match_prefix(MatchPrefixParams(key=key, req=request))
        self.last = result.last_device_node
        if hasattr(result, "device_indices"):
            return result.device_indices
        return self.cache.path_device_indices(self.last)

    def fill(
        self,
        request: Any,
        tokens: array[int],
        matched: torch.Tensor,
        fresh: torch.Tensor,
        length: int,
        tenant: int,
    ) -> None:
        start = len(matched)
        namespace = self.cache.lookup_namespace(request)
        if namespace is not None:
            request.irm_moved = self.look_up(tokens, start, length, namespace, tenant)
        self.tokens[fresh] = torch.tensor(list(tokens[start:length]))
        self.positions[fresh] = torch.arange(start, length)
        self.tenants[fresh] = tenant
        slots = torch.cat([matched.to(torch.int64), fresh])
        with self.cache._serving(request):
            key = RadixKey(tokens[:length], request.extra_key)
            inserted = self.cache.insert(InsertParams(key=key, value=slots))
        self.pool.free(slots[start : inserted.prefix_len])
        self.poison()

    def look_up(
        self, tokens: array[int], start: int, length: int, namespace: Any, tenant: int
    ) -> list[Moved]:
        moved = []
        with self.cache.mirror.registry.lookup(
            tokens, namespace=namespace, prefix_len=start
        ) as plan:
            for reuse in plan.segments:
                if not isinstance(reuse, Reuse) or reuse.target + reuse.length > length:
                    continue
                rows = self.cache.mirror.rows(reuse.pieces, reuse.source, tokens, reuse.target)
                if rows is None:
                    self.facts["unresolved"] += 1
                    continue
                self.compare(reuse, rows, tokens, tenant)
                turned = 1 if reuse.delta else 0
                end = reuse.target + reuse.length
                moved.append(Moved(reuse.target, end, reuse.hops + turned, reuse.depth + 1))
        return moved

    def compare(self, reuse: Reuse, rows: list[Any], tokens: array[int], tenant: int) -> None:
        slots = torch.cat([node.value[at : at + count] for node, at, count in rows])
        wanted = torch.tensor(list(tokens[reuse.target : reuse.target + reuse.length]))
        places = torch.arange(reuse.source, reuse.source + reuse.length)
        lies = (self.tokens[slots] != wanted) | (self.positions[slots] != places)
        self.facts["lies"] += int(lies.sum())
        self.facts["tenants_mixed"] += int((self.tenants[slots] != tenant).sum())
        self.facts["pieces"] += len(rows)
        self.facts["reused"] += reuse.length

    def poison(self) -> None:
        """Forget what freed slots held."""
        free = self.pool.free_pages
        if self.page > 1:
            free = (free[:, None] * self.page + torch.arange(self.page)).flatten()
        self.tokens[free] = self.positions[free] = NOTHING

    def check(self) -> None:
        """Every registered part belongs to a live node, once, and no row is lost or leaked."""
        live, held = {}, 0
        stack = list(self.cache.root_node.children.values())
        while stack:
            node = stack.pop()
            record = record_of(node)
            assert record is not None
            assert sum(part.length for part in record.segments) == len(node.key)
            self.facts["lies"] += int((self.tokens[node.value] == NOTHING).sum())
            live.update({part.key: node for part in record.segments if part.key is not None})
            held += len(node.key)
            stack += node.children.values()
        assert live == self.cache.mirror._owners
        assert held + self.pool.available_size() == SIZE
        if self.cache.mirror.registry.stats()["evicted_nodes"] == 0:
            assert self.cache.mirror.registry.stats()["nodes"] == len(live)

    def run(self, steps: int) -> dict[str, Any]:
        for step in range(steps):
            draw = self.random.random()
            if draw < 0.9:
                self.serve()
            elif draw < 0.99:
                self.cache.evict(EvictParams(num_tokens=self.random.randint(1, 400)))
                self.poison()
            else:
                self.cache.reset()
                self.pool.clear()
                self.poison()
            if step % 10 == 0:
                self.check()
        self.facts["broken"] = self.cache.mirror.broken
        self.facts["fallback"] = dict(self.metrics.fallbacks)
        return self.facts


def main() -> None:
    steps = int(sys.argv[1])
    found = []
    for seed, page, capacity in ((1, 1, 4096), (2, 16, 4096), (3, 1, 700), (4, 16, 700)):
        found.append({"seed": seed, "page": page, **Fuzz(seed, page, capacity).run(steps)})
    print("FACTS " + json.dumps(found))


if __name__ == "__main__":
    main()
