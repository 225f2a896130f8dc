"""Mooncake's own calls beside the tier's, on one loopback store -> bytes a second of each.

    python benches/tiers/speed.py --out benches/tiers/results/speed.json

One process holds the memory, a second one is Mooncake used directly (registered buffers, batches of
the same size, as many threads as the tier has workers), and this one uses the tier: encoding,
checksum and the way to its client process included. The two take turns on keys of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from irminsul import Namespace
from irminsul.tiers import ChunkRows, ChunkSpace, RowLayout
from irminsul.tiers.value import encoded_bytes
from report import processor, save
from tiers.mooncake_store import Store

MIB = 1 << 20
BATCH = 32
CALL_BYTES = 8 * MIB
# layers x bytes of a row: the tiny model of the tests, DeepSeek-V2-Lite, DeepSeek-V3.
SHAPES = {"3 layers": (3, 1152), "V2-Lite": (27, 1152), "V3": (61, 1152)}
TOKENS = 128
# Bytes of one measurement: more than a cache holds, so that neither side lives in it.
TOTAL_BYTES = 192 * MIB


def raw_client(address: str, workers: int) -> None:
    """Serve lines ``kind prefix count size`` with seconds, using Mooncake as it is.

    Kind ``empty`` takes everything out of the store.
    """
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 * MIB, "tcp", "", address) == 0
    block = np.random.default_rng(0).integers(0, 256, 256 * MIB, dtype=np.uint8)
    assert store.register_buffer(block.ctypes.data, block.nbytes) == 0
    pool = ThreadPoolExecutor(workers)
    print("ready", flush=True)
    for line in sys.stdin:
        kind, prefix, count, size = line.split()
        if kind == "empty":
            store.remove_all(True)
            print(json.dumps({"seconds": 0.0, "good": True}), flush=True)
            continue
        keys = [f"{prefix}-{index}" for index in range(int(count))]
        pointers = [block.ctypes.data + index * int(size) for index in range(int(count))]
        call = store.batch_put_from if kind == "put" else store.batch_get_into
        each = max(1, min(BATCH, CALL_BYTES // int(size)))
        began = time.perf_counter()
        jobs = [
            pool.submit(call, keys[i : i + each], pointers[i : i + each], [int(size)] * each)
            if i + each <= len(keys)
            else pool.submit(call, keys[i:], pointers[i:], [int(size)] * (len(keys) - i))
            for i in range(0, len(keys), each)
        ]
        codes = [code for job in jobs for code in job.result()]
        seconds = time.perf_counter() - began
        good = all(code == (0 if kind == "put" else int(size)) for code in codes)
        print(json.dumps({"seconds": seconds, "good": good}), flush=True)
    os._exit(0)


class Raw:
    """The process above."""

    def __init__(self, address: str, workers: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--raw", address, "--workers", str(workers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._read() == "ready\n"

    def __call__(self, kind: str, prefix: str, count: int, size: int) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{kind} {prefix} {count} {size}\n")
        self._process.stdin.flush()
        answer = json.loads(self._read())
        if not answer["good"]:
            raise RuntimeError(f"Mooncake's own {kind} failed")
        return float(answer["seconds"])

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def measure(raw: Raw, tier: Any, shape: str, rounds: int) -> dict[str, list[float]]:
    """Return bytes a second of each side and call, one number a round."""
    layers, row_bytes = SHAPES[shape]
    space = ChunkSpace(Namespace(model=shape), RowLayout("bench", layers, row_bytes))
    random = np.random.default_rng(1)
    count = TOTAL_BYTES // (layers * row_bytes * TOKENS)
    rows = random.integers(0, 256, (layers, TOKENS, row_bytes), dtype=np.uint8)
    found: dict[str, list[float]] = {"raw put": [], "tier put": [], "raw get": [], "tier get": []}
    for number in range(rounds):
        ids = random.integers(0, 1 << 32, (count, TOKENS), dtype=np.uint32)
        parts = [ChunkRows(space.ref(chunk), number, 0, 0, rows) for chunk in ids]
        refs = [part.ref for part in parts]
        size = encoded_bytes(refs[0])
        total = count * size
        prefix = f"{shape}-{number}".replace(" ", "_")
        sides = {
            "raw put": lambda p=prefix, s=size: raw("put", p, count, s),
            "tier put": lambda p=parts: _seconds(tier.put(p, 120.0), tier.counts),
            "raw get": lambda p=prefix, s=size: raw("get", p, count, s),
            "tier get": lambda r=refs: _seconds(tier.get(r, 120.0, lambda _: None), tier.counts),
        }
        # Who goes first changes, so that neither always meets a warmer store.
        order = list(sides) if number % 2 else ["tier put", "raw put", "tier get", "raw get"]
        try:
            seconds = {side: sides[side]() for side in order}
        except RuntimeError as error:  # a lease that ran out on a busy machine: no pair
            print(f"round {number} of {shape} left out: {error}", file=sys.stderr)
            seconds = {}
        if number:  # the first round connects
            for side, taken in seconds.items():
                found[side].append(total / taken)
        raw("empty", "-", 0, 0)
    return found


def _seconds(ticket: Any, counts: Any) -> float:
    began = time.perf_counter()
    answers = ticket.result()
    seconds = time.perf_counter() - began
    if not all(answers):
        raise RuntimeError(
            f"the tier missed {answers.count(False)} of {len(answers)}: {counts.snapshot()}"
        )
    return seconds


def rows_of(shape: str, workers: int, found: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Return one result row per call."""
    rows = []
    for call in ("put", "get"):
        # Pairs of one round saw the same machine; the ratio is the median of theirs.
        ratios = [
            ours / theirs
            for ours, theirs in zip(found[f"tier {call}"], found[f"raw {call}"], strict=True)
        ]
        rows.append(
            {
                "bar_id": "tiers.4",
                "case": f"{call}, {shape}, {TOKENS} tokens a chunk, {workers} workers",
                "metric": "median ratio of speeds, tier to Mooncake's own calls",
                "value": round(statistics.median(ratios), 3),
                "unit": "",
                "rival": "mooncake batch_put_from / batch_get_into, GB/s",
                "rival_value": round(statistics.median(found[f"raw {call}"]) / 1e9, 3),
                "bar": ">= 0.80",
                "samples": [round(ratio, 3) for ratio in ratios],
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def compare(workers: int, shapes: list[str], rounds: int) -> list[dict[str, Any]]:
    """Measure all `shapes` with that many calls at once on both sides."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder), 2 << 30)
        raw = Raw(store.address, workers)
        tier = store.tier(arena_bytes=512 * MIB, queue_bytes=1 << 30, hang_s=60.0, workers=workers)
        for shape in shapes:
            rows += rows_of(shape, workers, measure(raw, tier, shape, rounds))
        tier.close()
        raw.close()
        store.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--workers", type=int, nargs="+", default=[4])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--raw", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.raw:
        raw_client(arguments.raw, arguments.workers[0])
    rows = []
    for workers in arguments.workers:
        rows += compare(workers, arguments.shapes, arguments.rounds)
    save(arguments.out, f"{processor()}, loopback", "speed.py", rows)


if __name__ == "__main__":
    main()
