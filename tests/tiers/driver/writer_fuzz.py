"""A seed -> random traffic on the real radix tree, written behind, and the lies it found.

Every row of the pool says which token and position it is of, and of which tenant. The slots of an
evicted node are overwritten at once, so a copy that was not protected from eviction shows.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "integrations" / "sglang" / "driver"))

from cache_fuzz import SIZE, Fuzz
from irminsul import ChunkParams, Namespace, Policy
from irminsul.integrations.sglang.tiers import identity
from irminsul.integrations.sglang.tiers.off import NoTiers
from irminsul.integrations.sglang.tiers.writer import WriteBehind
from irminsul.tiers import ChunkPool

PARAMS = ChunkParams(min=64, avg=96, max=128)


class Written(NoTiers):
    """Tiers that only write."""

    enabled = True

    def __init__(self, fuzz: TierFuzz) -> None:
        self.chunks = ChunkPool(
            identity.row_layout(fuzz.layers, 0),
            2 << 20,
            params=PARAMS,
            policy=Policy(sink_tokens=0),
        )
        self.writer = WriteBehind(
            self.chunks,
            fuzz.layers,
            fuzz.cache,
            fuzz.metrics,
            most_tokens=SIZE // 2,
            max_chunk=PARAMS.max,
            max_hops=15,
            max_depth=8,
        )

    def wrote(self, request: Any, leaf: Any, root: Any, trusted: bool = True) -> None:
        tenant = Namespace(tenant=request.extra_key.split("\0")[0])
        self.writer.path(leaf, root, tenant, None, trusted)

    def reset(self) -> None:
        self.writer.reset()
        self.chunks.clear()


class TierFuzz(Fuzz):
    def __init__(self, seed: int, page: int) -> None:
        super().__init__(seed, page, 4096)
        self.layers = [torch.zeros(SIZE + page, 1, 8, dtype=torch.int64) for _ in range(2)]
        # Small documents would hold no whole chunk.
        self.documents = [self.text(self.random.randint(150, 400)) for _ in range(8)]
        self.cache.tiers = self.tiers = Written(self)

    def fill(self, request: Any, tokens: Any, matched: Any, fresh: Any, *rest: Any) -> None:
        start, length = len(matched), rest[0]
        for layer in self.layers:
            layer[fresh, 0, 0] = torch.tensor(list(tokens[start:length]))
            layer[fresh, 0, 1] = torch.arange(start, length)
            layer[fresh, 0, 2] = rest[1]
        super().fill(request, tokens, matched, fresh, *rest)

    def poison(self) -> None:
        super().poison()
        for layer in self.layers:
            layer[self.tokens == -1] = -1

    def serve(self) -> None:
        self.tiers.writer.unlock(self.tiers.writer.copied)
        super().serve()

    def look(self) -> None:
        """Compare every chunk of the host tier with what its rows must say."""
        host = self.tiers.chunks.host
        for (_, _), entry in list(host._entries.items()):
            lease = host.lease(entry.chunk.ref)
            if lease is None:
                continue
            rows = lease.chunk.rows.reshape(2, -1, 64).view("<i8").reshape(2, -1, 8)
            ref = lease.chunk.ref
            places = np.arange(len(ref.tokens)) + lease.chunk.base_position
            tenant = 0 if ref.space.namespace == Namespace(tenant="a") else 1
            good = (rows[:, :, 0] == ref.tokens) & (rows[:, :, 1] == places)
            good &= rows[:, :, 2] == tenant
            self.facts["tier_lies"] += int((~good).sum())
            self.facts["tier_rows"] += good.size
            lease.release()

    def run(self, steps: int) -> dict[str, Any]:
        self.facts |= {"tier_lies": 0, "tier_rows": 0}
        for _ in range(8):
            super().run(steps // 8)
            self.look()
        until = time.monotonic() + 30.0
        while self.tiers.writer.locked_tokens and time.monotonic() < until:
            self.tiers.writer.unlock(self.tiers.writer.copied)
            time.sleep(0.01)
        self.look()
        self.facts["locked"] = self.tiers.writer.locked_tokens
        self.facts["protected"] = self.cache.protected_size()
        self.facts["written"] = self.metrics.counts["tier_written_tokens"]
        self.tiers.writer.close()
        return self.facts


def main() -> None:
    steps = int(sys.argv[1])
    found = [{"page": page, **TierFuzz(seed, page).run(steps)} for seed, page in ((1, 1), (2, 16))]
    print("FACTS " + json.dumps(found))


if __name__ == "__main__":
    main()
