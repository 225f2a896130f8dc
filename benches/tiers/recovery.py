"""Recorded traffic and chunk keys -> which share of local reuse a pool can give, without an engine.

    python benches/tiers/recovery.py FILE.jsonl.zst ... --out benches/tiers/results/recovery.json

For every call in order, two lookups by the library's own planner. Local: everything of earlier
calls is recorded, as in an engine that computed them. Pool: what a `ChunkPool` that starts empty
fetches of this prompt from a store in which another has put the chunks of all earlier calls, with
their signposts. Beside it what other keys would give, without signposts: whole chunks alone; pieces
of 64 tokens counted from the start of their chunk, which find the head of a chunk whose end is
another; small chunks, cut by content after 64 tokens and soon, which also find the rest of a chunk
whose start is another; or whole chunks that end where a document does, as with a boundary marker in
the prompt: then documents are spans with keys.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from irminsul import ChunkParams, Namespace, Policy, Registry, chunk
from irminsul.demo.prompts import encode_calls
from irminsul.tiers import ChunkPool, ChunkRows, ChunkSpace, CostModel, HostTier, RowLayout
from irminsul.tiers.value import rows_shape
from irminsul.tokenizer import load_tokenizer
from irminsul.traces.reader import read_calls
from numpy.typing import NDArray
from report import save

SPACE = ChunkSpace(Namespace(), RowLayout("none", 1, 1))
SINKS = Policy().sink_tokens
PIECE = 64
# The prompts of retrieval keep documents apart by empty lines, three and more.
GAPS = [int(load_tokenizer(None).encode("\n" * lines)[0]) for lines in (3, 4, 5)]
SMALL = ChunkParams(min=64, avg=72, max=128)
OURS = "whole chunks and signposts"


def whole(ids: NDArray[np.uint32]) -> Iterator[tuple[int, int]]:
    """Yield the chunks that irminsul writes: all but the one that the end cuts."""
    yield from pairwise(chunk(ids).bounds.tolist()[:-1])


def pieces(ids: NDArray[np.uint32]) -> Iterator[tuple[int, int]]:
    """Yield pieces of 64 tokens and more, counted from the start of their chunk."""
    for start, end in pairwise(chunk(ids).bounds.tolist()):
        # The rest of a chunk goes with its last full piece; a cut chunk has full pieces only.
        count = max(1, (end - start) // PIECE)
        for number in range(count):
            low = start + number * PIECE
            high = end if number == count - 1 and end != len(ids) else low + PIECE
            if low >= SINKS and high <= len(ids):
                yield low, high


def small(ids: NDArray[np.uint32]) -> Iterator[tuple[int, int]]:
    """Yield chunks as short as the rolling hash allows, cut by content."""
    for start, end in pairwise(chunk(ids, SMALL).bounds.tolist()[:-1]):
        if start >= SINKS:
            yield start, end


def documents(ids: NDArray[np.uint32]) -> Iterator[tuple[int, int]]:
    """Yield whole chunks that also end where documents do."""
    ends = np.flatnonzero(np.isin(ids, GAPS)) + 1
    edges = [0, *ends.tolist(), len(ids)]
    for first, last in pairwise(edges):
        if first == last:
            continue
        bounds = (chunk(ids[first:last]).bounds + first).tolist()
        for start, end in pairwise(bounds if last < len(ids) else bounds[:-1]):
            if start >= SINKS:
                yield start, end


KINDS = {
    "whole chunks": whole,
    "pieces of 64": pieces,
    "small chunks": small,
    "documents marked": documents,
}


class Pools:
    """A store that one pool writes and another reads, which is emptied before every call."""

    def __init__(self) -> None:
        self.store = HostTier(1 << 30)
        self.fetched = 0
        # As if computing were slow: everything is worth fetching.
        cost = CostModel(1e12, 1.0)
        self._writer = ChunkPool(SPACE.layout, 1 << 22, self.store)
        self._reader = ChunkPool(SPACE.layout, 1 << 22, self.store, cost, publishes=False)

    def write(self, ids: NDArray[np.uint32]) -> None:
        self._writer.clear()
        parts = self._writer.chunks(SPACE.namespace, ids, [(0, len(ids))])
        rows = [np.zeros(rows_shape(part.ref), dtype=np.uint8) for part in parts]
        self._writer.keep(
            [ChunkRows(p.ref, p.start, 0, 0, r) for p, r in zip(parts, rows, strict=True)]
        )

    def read(self, ids: NDArray[np.uint32]) -> int:
        reader = self._reader
        reader.clear()
        coming = reader.prefetch(SPACE.namespace, ids, [(0, len(ids))], 5.0)
        if coming is None:
            return 0
        while not coming.done:
            time.sleep(0.0002)
        reader.admit(coming)
        self.fetched += sum(len(ref.tokens) for ref in reader.index._chunks.values())
        spans = reader.find(SPACE.namespace, ids, 0)
        return sum(span.end - span.start for span in spans)


def measure(source: str) -> dict[str, Any]:
    """Return reused tokens of each kind for one file."""
    local, pools = Registry(1 << 25), Pools()
    stores: dict[str, set[bytes]] = {kind: set() for kind in KINDS}
    totals: dict[str, Any] = {"prompt_tokens": 0, "local": 0, OURS: 0, **dict.fromkeys(KINDS, 0)}
    calls = encode_calls(read_calls(source), load_tokenizer(None), 129_280, 1 << 30)
    for number, prompt in enumerate(calls):
        ids = prompt.ids
        totals["prompt_tokens"] += len(ids)
        with local.lookup(ids, namespace=SPACE.namespace) as plan:
            totals["local"] += plan.reused_tokens
        local.record(ids, number, namespace=SPACE.namespace)
        totals[OURS] += pools.read(ids)
        pools.write(ids)
        for kind, cut in KINDS.items():
            parts = [(start, SPACE.ref(ids[start:end])) for start, end in cut(ids)]
            totals[kind] += _from_store(ids, parts, stores[kind])
            stores[kind].update(ref.key for _, ref in parts)
    totals["keys"] = {kind: len(keys) for kind, keys in stores.items()}
    totals["keys"][OURS] = len(pools.store)
    totals["fetched"] = pools.fetched
    return totals


def _from_store(ids: NDArray[np.uint32], parts: list[tuple[int, Any]], store: set[bytes]) -> int:
    """Return what a lookup finds when only what the store has of this prompt is recorded."""
    fetched = Registry(len(ids) + 1024)
    end = -1
    for node, (start, ref) in enumerate(parts):
        if ref.key in store:
            parent = node - 1 if start == end else None
            common = {"namespace": SPACE.namespace, "base_position": start}
            fetched.add(node, parent, ref.tokens, **common)
            end = start + len(ref.tokens)
    with fetched.lookup(ids, namespace=SPACE.namespace) as plan:
        return int(plan.reused_tokens)


def rows_of(source: str, totals: dict[str, Any]) -> list[dict[str, Any]]:
    name = Path(source).name.split(".")[0]
    return [
        {
            "bar_id": "tiers.1",
            "case": f"{name}, {kind} as keys",
            "metric": "share of local reuse that the pool gives",
            "value": round(totals[kind] / max(1, totals["local"]), 4),
            "unit": "",
            "rival": "local reuse, share of prompt tokens",
            "rival_value": round(totals["local"] / totals["prompt_tokens"], 4),
            "bar": ">= 0.90" if "early_variation" in name and kind == OURS else None,
            "samples": {
                "keys": totals["keys"][kind],
                "prompt_tokens": totals["prompt_tokens"],
                **({"fetched_tokens": totals["fetched"]} if kind == OURS else {}),
            },
        }
        for kind in (OURS, *KINDS)
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for source in arguments.files:
        rows += rows_of(source, measure(source))
        print(json.dumps(rows[-len(KINDS) - 1 :]), flush=True)
        names = " ".join(Path(name).name for name in arguments.files)
        save(arguments.out, f"{platform.machine()}; counts, no times", f"recovery.py {names}", rows)


if __name__ == "__main__":
    main()
