"""Chunking and prompt hashing of serving engines, in turns on the same ids -> one JSON file.

Peers that are not installed are named in the results and left out. Times are the thread's own
processor time, so that a loaded machine distorts less, each after an untimed run that finds the
ids in the caches as a tokenizer leaves them; medians over the samples that were taken while the
core's other thread was idle before and after, of all samples, and the best of them.

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
from sibling import Sibling

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


Samples = list[tuple[float, bool]]
# Most rounds, as a multiple of the samples asked for.
PATIENCE = 6


def alone(samples: Samples) -> list[float]:
    return [value for value, was_alone in samples if was_alone]


def median(samples: Samples) -> float:
    """Median of the samples on a core of our own, or of all where there are none."""
    return statistics.median(alone(samples) or [value for value, _ in samples])


def measure(candidates: dict[str, Candidate], rounds: int) -> dict[str, Samples]:
    sibling = Sibling()
    times: dict[str, Samples] = {name: [] for name in candidates}
    for _ in range(PATIENCE * rounds):
        for name, run in candidates.items():
            run()
            before = sibling.probe()
            start = time.thread_time_ns()
            run()
            taken = (time.thread_time_ns() - start) / 1000
            was_alone = sibling.is_alone(max(before, sibling.probe()))
            times[name].append((taken, was_alone))
        if all(len(alone(samples)) >= rounds for samples in times.values()):
            break
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


OURS = "irminsul.chunk, u32 array"


def rows(times: dict[str, Samples]) -> list[dict[str, Any]]:
    medians = {name: median(samples) for name, samples in times.items()}
    everything = {name: statistics.median(v for v, _ in times[name]) for name in times}
    best = {name: min(value for value, _ in samples) for name, samples in times.items()}
    peers = {name: value for name, value in medians.items() if not name.startswith("irminsul")}
    table: list[dict[str, Any]] = [
        {
            "bar_id": "core.8",
            "case": f"{name}, {LENGTH} text-like ids",
            "metric": "time of irminsul.chunk from a u32 array",
            "value": round(medians[OURS], 1),
            "unit": "us",
            "rival": name,
            "rival_value": round(value, 1),
            "ratio": round(value / medians[OURS], 2),
            "best": round(best[OURS], 1),
            "rival_best": round(best[name], 1),
            "ratio_of_best": round(best[name] / best[OURS], 2),
            "ratio_with_shared_core": round(everything[name] / everything[OURS], 2),
            "bar": "<= 0.1667 of the rival"
            if name == "SGLang page hash, page 64"
            else "< the rival",
            "samples": len(alone(times[OURS])),
            "rival_samples": len(alone(times[name])),
        }
        for name, value in peers.items()
    ]
    table += [
        {
            "bar_id": "core.time",
            "case": name,
            "metric": "time",
            "value": round(medians[name], 1),
            "unit": "us",
            "rival": None,
            "rival_value": None,
            "bar": None,
            "samples": len(alone(times[name])),
        }
        for name in medians
        if name not in peers
    ]
    calls = 51
    overhead: dict[str, Any] = {
        "bar_id": "core.3",
        "case": "irminsul.chunk of 64 ids, u32 array",
        "metric": "whole call",
        "value": round(call_overhead(calls), 2),
        "unit": "us",
        "rival": None,
        "rival_value": None,
        "bar": "<= 2",
        "samples": calls,
    }
    return [*table, overhead]


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
        "rows": rows(times),
    }
    options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    json.dump(results, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
