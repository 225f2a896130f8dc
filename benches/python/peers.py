"""Chunking and prompt hashing of serving engines, in turns on the same ids -> one JSON file.

Peers that are not installed are named in the results and left out. Times are the thread's own
processor time, so that a loaded machine distorts less, each after an untimed run that finds the
ids in the caches as a tokenizer leaves them; medians over the rounds, and the
best of them, which a loaded machine distorts least.

The peers do different work: page and block hashes chain a prefix and are collision resistant where
they use SHA-256; ours finds content at any position and compares ids before anything is reused.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pickle
import platform
import statistics
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import irminsul
import numpy as np

LENGTH = 1 << 17
Candidate = Callable[[], object]


def text_like_ids() -> np.ndarray:
    """Ids of DeepSeek's vocabulary, their frequency falling about as 1 / id."""
    unit = np.random.default_rng(1).random(LENGTH)
    return (np.exp(unit * np.log(129_280)) - 1).astype(np.uint32)


def ours(ids: np.ndarray) -> dict[str, Candidate]:
    namespace = irminsul.Namespace()
    registry = irminsul.Registry(1 << 24)
    registry.record(ids, 1, namespace=namespace)
    as_list, as_int64 = ids.tolist(), ids.astype(np.int64)
    return {
        "irminsul.chunk, u32 array": lambda: irminsul.chunk(ids),
        "irminsul.chunk, i64 array": lambda: irminsul.chunk(as_int64),
        "irminsul.chunk, list": lambda: irminsul.chunk(as_list),
        "irminsul lookup, everything known": lambda: registry.lookup(ids, namespace=namespace),
    }


def sglang(ids: np.ndarray) -> dict[str, Candidate]:
    from sglang.srt.mem_cache.cpp_utils.native_hash import get_native_hash

    raw = array("q", ids.tolist())
    get_native_hash(raw, None, 64)
    return {
        f"SGLang page hash, page {page}": lambda page=page: get_native_hash(raw, None, page)
        for page in (64, 256)
    }


def chained(ids: list[int], block: int, digest: Callable[[bytes], bytes]) -> bytes:
    """Hash blocks as vLLM does: a pickled triple of parent hash, ids and extra keys."""
    parent = b""
    for start in range(0, len(ids) - block + 1, block):
        triple = (parent, tuple(ids[start : start + block]), None)
        parent = digest(pickle.dumps(triple, protocol=pickle.HIGHEST_PROTOCOL))
    return parent


def vllm_style(ids: np.ndarray) -> dict[str, Candidate]:
    import xxhash

    as_list = ids.tolist()

    def sha256(data: bytes) -> bytes:
        return hashlib.sha256(data).digest()

    def xxh3(data: bytes) -> bytes:
        return xxhash.xxh3_128_digest(data)

    return {
        f"vLLM-style {name} over pickle, block {block}": lambda f=function, b=block: chained(
            as_list, b, f
        )
        for name, function in (("sha256", sha256), ("xxh3-128", xxh3))
        for block in (16, 64)
    }


def dynamo(ids: np.ndarray) -> dict[str, Candidate]:
    from dynamo._core import compute_block_hash_for_seq

    as_list = ids.tolist()
    return {
        "Dynamo compute_block_hash_for_seq(list), block 64": lambda: compute_block_hash_for_seq(
            as_list, 64
        )
    }


def rolling_windows(ids: np.ndarray) -> dict[str, Candidate]:
    """Polynomial hash of every 256-id window, the first half of LMCache's position-free lookup."""
    import numba

    @numba.njit(cache=False)
    def hashes(tokens: Any, window: int) -> Any:
        base = np.uint64(0x100000001B3)
        top = np.uint64(1)
        for _ in range(window):
            top *= base
        out = np.empty(len(tokens) - window + 1, np.uint64)
        value = np.uint64(0)
        for at in range(len(tokens)):
            value = value * base + np.uint64(tokens[at])
            if at >= window:
                value -= top * np.uint64(tokens[at - window])
            if at >= window - 1:
                out[at - window + 1] = value
        return out

    wide = ids.astype(np.uint64)
    hashes(wide, 256)
    return {"LMCache-style rolling hash of all 256-id windows": lambda: hashes(wide, 256)}


def byte_chunkers(ids: np.ndarray) -> dict[str, Candidate]:
    from pyfastcdc import FastCDC

    data = ids.tobytes()
    cutter = FastCDC(avg_size=512, min_size=256, max_size=2048)
    return {
        "pyfastcdc, 512 bytes on average, cuts only": lambda: sum(1 for _ in cutter.cut_buf(data))
    }


PEERS = (sglang, vllm_style, dynamo, rolling_windows, byte_chunkers)


def measure(candidates: dict[str, Candidate], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            run()
            start = time.thread_time_ns()
            run()
            times[name].append((time.thread_time_ns() - start) / 1000)
    return times


def call_overhead(rounds: int) -> float:
    """Median time in us of a call on 64 ids, less what the same call does in the core (0.1 us)."""
    few = np.arange(64, dtype=np.uint32)
    samples = []
    for _ in range(rounds):
        start = time.perf_counter_ns()
        for _ in range(100):
            irminsul.chunk(few)
        samples.append((time.perf_counter_ns() - start) / 100_000)
    return statistics.median(samples)


def rows(times: dict[str, list[float]], rounds: int) -> list[dict[str, Any]]:
    medians = {name: statistics.median(samples) for name, samples in times.items()}
    best = {name: min(samples) for name, samples in times.items()}
    peers = {name: value for name, value in medians.items() if not name.startswith("irminsul")}
    table = [
        {
            "bar_id": "core.8",
            "case": f"{name}, {LENGTH} text-like ids",
            "metric": "time of irminsul.chunk from a u32 array",
            "value": round(medians["irminsul.chunk, u32 array"], 1),
            "unit": "us",
            "rival": name,
            "rival_value": round(value, 1),
            "ratio": round(value / medians["irminsul.chunk, u32 array"], 2),
            "best": round(best["irminsul.chunk, u32 array"], 1),
            "rival_best": round(best[name], 1),
            "ratio_of_best": round(best[name] / best["irminsul.chunk, u32 array"], 2),
            "bar": ">= 6 times faster" if name == "SGLang page hash, page 64" else "faster",
            "samples": rounds,
        }
        for name, value in peers.items()
    ]
    for name in medians.keys() - peers.keys():
        value = round(medians[name], 1)
        table.append({"bar_id": "", "case": name, "metric": "time", "value": value, "unit": "us"})
        table[-1] |= {"rival": None, "rival_value": None, "bar": "", "samples": rounds}
    overhead = {"bar_id": "core.3", "case": "irminsul.chunk of 64 ids, u32 array", "unit": "us"}
    overhead |= {"metric": "whole call", "value": round(call_overhead(rounds), 2), "bar": "<= 2"}
    return [*table, overhead | {"rival": None, "rival_value": None, "samples": rounds}]


def machine() -> str:
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = next((x for x in cpuinfo.splitlines() if x.startswith("model name")), ": ?")
    load = os.getloadavg()[0]
    return (
        f"{model.split(':')[1].strip()}, {os.cpu_count()} cores, CPython "
        f"{platform.python_version()}, load average {load:.1f} at the start"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benches/python/results/peers.json"))
    parser.add_argument("--rounds", type=int, default=51)
    options = parser.parse_args()
    stamp = machine()
    ids = text_like_ids()
    candidates = ours(ids)
    missing = {}
    for peer in PEERS:
        try:
            candidates |= peer(ids)
        except (ImportError, RuntimeError, TypeError) as error:
            missing[peer.__name__] = f"{type(error).__name__}: {error}"
    times = measure(candidates, options.rounds)
    results = {
        "machine": stamp,
        "command": f"python benches/python/peers.py --rounds {options.rounds}",
        "missing": missing,
        "rows": rows(times, options.rounds),
    }
    options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    json.dump(results, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
