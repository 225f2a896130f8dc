"""A GPU host -> how fast rows come from host memory and from a store, and which link pays.

    python benches/tiers/device.py --out benches/tiers/results/device.json

DeepSeek-V2-Lite dimensions: 27 layers of 576 bf16 numbers, chunks of 128 tokens. Each step is
printed as it is done; without Mooncake the store is left out and said so. The speed of prefill that
the break-even is computed from is given, not measured here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from irminsul import Namespace
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.spans import HostCopy
from irminsul.integrations.sglang.tiers import identity
from irminsul.integrations.sglang.tiers import rows as tiers_rows
from irminsul.integrations.sglang.tiers.rows import HostRows
from irminsul.integrations.sglang.tiers.writer import WriteBehind
from irminsul.integrations.sglang.tree.provenance import NodeRecord, Segment
from irminsul.rotation import RopeTable
from irminsul.tiers import ChunkPool, ChunkRows, ChunkSpace, HostTier, RowLayout, Speeds
from irminsul.tiers.value import encoded_bytes
from report import save as save_rows
from tiers.mooncake_store import Store, until, why_not

MIB = 1 << 20
LAYERS, ROW, CHUNK = 27, 576, 128
TOKENS = 8192


def timed(call: Callable[[], Any], repeats: int = 7) -> list[float]:
    """Return seconds of each repeat, the device's work included."""
    found = []
    for number in range(repeats + 2):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        if number >= 2:
            found.append(time.perf_counter() - began)
    return found


def row(case: str, size: int, seconds: list[float], **more: Any) -> dict[str, Any]:
    speeds = [size / second / 1e9 for second in seconds]
    found = {
        "bar_id": "tiers.4",
        "case": case,
        "metric": "bytes a second, median",
        "value": round(statistics.median(speeds), 2),
        "unit": "GB/s",
        "rival": None,
        "rival_value": None,
        "bar": None,
        "samples": [round(speed, 2) for speed in speeds],
        **more,
    }
    print(json.dumps(found), flush=True)
    return found


def device_rows() -> list[dict[str, Any]]:
    """Measure host memory to slots, and slots to host memory."""
    device = torch.device("cuda")
    layers = [torch.randn(2 * TOKENS, 1, ROW, device=device).bfloat16() for _ in range(LAYERS)]
    angles = torch.arange(1 << 16)[:, None] * (10000.0 ** (-torch.arange(32) / 32.0))
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1).float().to(device)
    table = RopeTable(cos_sin, interleaved=True)
    space = ChunkSpace(Namespace(), identity.row_layout(layers, 0))
    size = TOKENS * space.layout.token_bytes
    tier = HostTier(size + 64 * MIB, pinned=True)
    pieces = []
    for number in range(TOKENS // CHUNK):
        ref = space.ref(np.arange(number * CHUNK, (number + 1) * CHUNK))
        rows = np.zeros((LAYERS, CHUNK, 2 * ROW), dtype=np.uint8)
        tier.put([ChunkRows(ref, number * CHUNK, 0, 0, rows)])
        lease = tier.lease(ref)
        assert lease is not None
        pieces.append((HostRows(lease), 0, CHUNK))
    target = torch.arange(TOKENS, device=device)
    copy = HostCopy(tuple(pieces), target, torch.full((TOKENS,), 777))
    block = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    on_device = torch.empty(size, dtype=torch.uint8, device=device)
    index = torch.randperm(TOKENS, device=device)

    def gather() -> None:
        found = torch.stack([layer[index, 0] for layer in layers])
        block.view(torch.bfloat16)[: found.numel()].copy_(found.reshape(-1), non_blocking=True)

    expected = [layer.clone() for layer in layers]
    tiers_rows.write(copy, layers, table)
    for layer, clean in zip(layers, expected, strict=True):
        assert torch.equal(layer[TOKENS:], clean[TOKENS:])
        # The chunks hold zeros, which stay zeros when they are turned.
        assert not layer[:TOKENS].any()
    return [
        row("one pinned copy, host to device", size, timed(lambda: on_device.copy_(block, True))),
        row(
            f"{TOKENS} rows x {LAYERS} layers from chunks in host memory to slots, turned",
            size,
            timed(lambda: tiers_rows.write(copy, layers, table)),
        ),
        row(f"{TOKENS} scattered rows x {LAYERS} layers to host memory", size, timed(gather)),
    ]


def check_writer(device: torch.device) -> dict[str, Any]:
    """Write a path of a stand-in tree behind on the device's own stream, and compare every row."""
    tokens = 4096
    layers = [torch.randn(2 * tokens, 1, ROW, device=device).bfloat16() for _ in range(LAYERS)]
    layout = identity.row_layout(layers, 0)
    pool = ChunkPool(layout, 2 * tokens * layout.token_bytes, pinned=device.type == "cuda")
    ids = np.random.default_rng(3).integers(0, 1 << 20, tokens)
    slots = torch.randperm(2 * tokens, device=device)[:tokens]
    root = SimpleNamespace()
    leaf = SimpleNamespace(key=_Key(ids), value=slots, parent=root)
    leaf.irm_record = NodeRecord(0, 0, [Segment(tokens, 0, 0, 1)])
    locks: list[int] = []
    cache = SimpleNamespace(
        inc_lock_ref=lambda node: locks.append(1), dec_lock_ref=lambda node: locks.append(-1)
    )
    writer = WriteBehind(
        pool,
        layers,
        cache,
        Metrics(60.0),
        most_tokens=1 << 20,
        max_chunk=512,
        max_hops=15,
        max_depth=8,
    )
    stream = torch.cuda.current_stream() if device.type == "cuda" else None
    writer.path(leaf, root, Namespace(), stream)
    until(lambda: writer.unlock(writer.copied) or not writer.locked_tokens, 30.0)
    wrong, checked = _compare(pool, np.append(ids, 1), layers, slots)
    writer.close()
    found = {
        "bar_id": "tiers.3",
        "case": f"rows written behind on {device.type}, compared with the pool's",
        "metric": "rows that differ",
        "value": wrong,
        "unit": "rows",
        "rival": "rows compared",
        "rival_value": checked * LAYERS,
        "bar": "== 0",
        "samples": {"locks_left": sum(locks)},
    }
    print(json.dumps(found), flush=True)
    return found


def _compare(
    pool: ChunkPool, prompt: Any, layers: list[torch.Tensor], slots: torch.Tensor
) -> tuple[int, int]:
    """Return how many rows of the host tier differ from the pool's, and how many there are."""
    wrong = checked = 0
    for span in pool.find(Namespace(), prompt, 0):
        position = span.start
        for lease, at, size in span.pieces:
            rows = torch.from_numpy(lease.chunk.rows).view(torch.bfloat16)[:, at : at + size]
            where = slots[position : position + size]
            truth = torch.stack([layer[where, 0] for layer in layers]).cpu()
            wrong += int((rows != truth).any(dim=-1).sum())
            checked += size
            position += size
        span.release()
    return wrong, checked


class _Key:
    """What the writer asks of a tree node's key."""

    def __init__(self, ids: Any) -> None:
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids)

    def raw_token_ids(self) -> Any:
        return self._ids


def store_rows(folder: Path) -> list[dict[str, Any]]:
    """Measure the way of chunks through a store on loopback."""
    store = Store(folder, 2 << 30)
    tier = store.tier(arena_bytes=1 << 30, queue_bytes=1 << 30, hang_s=60.0)
    space = ChunkSpace(Namespace(model="d"), RowLayout("bench", LAYERS, 2 * ROW))
    rows = np.zeros((LAYERS, CHUNK, 2 * ROW), dtype=np.uint8)
    count = 48
    times: dict[str, list[float]] = {"put": [], "get": []}
    size = 0
    for number in range(6):
        ids = np.random.default_rng(number).integers(0, 1 << 32, (count, CHUNK), dtype=np.uint32)
        parts = [ChunkRows(space.ref(chunk), 0, 0, 0, rows) for chunk in ids]
        size = sum(encoded_bytes(part.ref) for part in parts)
        for kind, call in (
            ("put", lambda p=parts: tier.put(p, 60.0)),
            ("get", lambda p=parts: tier.get([x.ref for x in p], 60.0, lambda _: None)),
        ):
            began = time.perf_counter()
            answers = call().result()
            if all(answers) and number:
                times[kind].append(time.perf_counter() - began)
    tier.close()
    store.close()
    return [
        row(f"{kind} through the store, loopback", size, seconds)
        for kind, seconds in times.items()
        if seconds
    ]


def break_even(tokens_per_s: float, measured: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the link speed at which fetching and computing take as long."""
    token_bytes = LAYERS * ROW * 2
    speed = Speeds(1.0, 1.0 / tokens_per_s).break_even_bytes_per_s(token_bytes)
    found = {
        "bar_id": "tiers.4",
        "case": f"break-even link, DeepSeek-V2-Lite, prefill {tokens_per_s:,.0f} tokens a second",
        "metric": f"{token_bytes} bytes a token x tokens a second",
        "value": round(speed / 1e9, 3),
        "unit": "GB/s",
        "rival": "host to device copy here",
        "rival_value": measured[0]["value"] if measured[0]["unit"] == "GB/s" else None,
        "bar": None,
        "samples": [],
    }
    print(json.dumps(found), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--prefill", type=float, default=32_768 / 0.660, help="tokens a second")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []

    def save() -> None:
        name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
        save_rows(arguments.out, name, "device.py", rows)

    if torch.cuda.is_available():
        rows += device_rows()
        save()
    rows.append(check_writer(torch.device("cuda" if torch.cuda.is_available() else "cpu")))
    rows.append(break_even(arguments.prefill, rows))
    save()
    reason = why_not()
    if reason:
        print(f"store left out: {reason}", flush=True)
    else:
        with tempfile.TemporaryDirectory() as folder:
            rows += store_rows(Path(folder))
    save()


if __name__ == "__main__":
    main()
