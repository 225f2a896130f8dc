"""A prompt and a full registry -> the scheduler's time to chunk, look up and plan it.

No engine: the mirror, the planner and the registry as the SGLang plugin uses them, on tree nodes
that are plain objects. Each sample is a request that was never planned before. On a GPU the slots
lie there, as in production, and what the host starts on it is counted, not waited for. There the
same batch is then made once more by plain torch: the numbers are compared, and the times of both
ways are told.

    python benches/serving/planner.py --device cuda --out benches/serving/results/planner.json
"""

from __future__ import annotations

import argparse
import platform
import time
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from irminsul import Namespace, Registry
from irminsul.integrations.sglang.admission import finding
from irminsul.integrations.sglang.admission.costs import Costs
from irminsul.integrations.sglang.batch import numbers, planner
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.spans import Limits, Window
from irminsul.integrations.sglang.tree.mirror import TreeMirror
from rows import Row, row, save

LENGTH = 32_768
NAMESPACE = Namespace(model="bench")
LIMITS = Limits(rows=1024, row_tokens=1 << 22, min_span=32, positions=1 << 20)
COSTS = Costs(10.0, 0.0023, 0.0007, 0.38, 300.0, 2000.0)


class Key:
    def __init__(self, ids: Any) -> None:
        self.token_ids = array("q", ids.tobytes())

    def __len__(self) -> int:
        return len(self.token_ids)

    def raw_token_ids(self) -> array[int]:
        return self.token_ids


def node(ids: Any, device: str) -> Any:
    return SimpleNamespace(key=Key(ids), parent=None, value=torch.arange(len(ids), device=device))


def full_registry(entries: int, random: Any, device: str) -> tuple[TreeMirror, list[Any]]:
    """Return a mirror whose registry holds at least `entries` fingerprints, and its texts."""
    mirror, texts = TreeMirror(Registry(1 << 26), Metrics(60.0)), []
    while mirror.registry.stats()["fingerprints"] < entries:
        ids = random.integers(0, 129_280, LENGTH, dtype=np.int64)
        mirror.record(node(ids, device), None, NAMESPACE, [])
        texts.append(ids)
    return mirror, texts


def prompt(text: Any, holes: int, random: Any) -> Any:
    fresh = random.integers(0, 129_280, 150, dtype=np.int64)
    spans = np.array_split(text[32 : 32 + LENGTH - 150], holes - 1)
    parts = [
        part for pair in zip(np.array_split(fresh, holes), spans, strict=False) for part in pair
    ]
    return np.concatenate([*parts, np.array_split(fresh, holes)[-1]])


def plan(
    mirror: TreeMirror, ids: Any, metrics: Metrics, device: str
) -> tuple[list[float], int, float]:
    """Return when planning one request began and each of its parts ended, and what it moves.

    The last number is what making the batch took by plain torch, in seconds; 0 where it does.
    """
    request = SimpleNamespace(
        rid="bench",
        full_untruncated_fill_ids=array("q", ids.tobytes()),
        retracted_stain=False,
        cached_tokens=0,
        cached_tokens_device=0,
    )
    inputs = torch.from_numpy(ids)
    batch = SimpleNamespace(
        out_cache_loc=torch.arange(len(ids), device=device),
        prefill_input_ids_cpu=inputs.pin_memory() if device == "cuda" else inputs,
    )
    if device == "cuda":
        torch.cuda.synchronize()
    times = [time.perf_counter()]
    window = Window(request, 0, len(ids))
    finding.find_spans(window, mirror, NAMESPACE, LIMITS, metrics)
    times.append(time.perf_counter())
    finding.keep_worthwhile(window, COSTS, metrics)
    finding.cut_to_limits([window], LIMITS, metrics)
    finding.follow(window, mirror, metrics)
    times.append(time.perf_counter())
    made = planner.prepare(batch, [window]) if window.spans else None
    times.append(time.perf_counter())
    compared = made is not None and device == "cuda"
    return times, window.reused, by_torch(batch, window, made) if compared else 0.0


def by_torch(batch: Any, window: Window, made: planner.Trimmed) -> float:
    """Return what making the batch takes without the kernel, which must make the same."""
    torch.cuda.synchronize()
    kernel, numbers.written = numbers.written, lambda *_: None
    try:
        began = time.perf_counter()
        again = planner.prepare(batch, [window])
        taken = time.perf_counter() - began
    finally:
        numbers.written = kernel
    tensors = [(one.inputs, one.slots, *one.plan.tensors()) for one in (made, again)]
    if not all(map(torch.equal, *tensors)):
        raise SystemExit("the kernel and plain torch disagree on a batch")
    return taken


def case_row(case: str, samples: Any, plain: list[float]) -> Row:
    """Return the row of one case from each sample's milliseconds, part by part."""
    seconds, parts = samples.sum(axis=1), np.median(samples, axis=0).round(4).tolist()
    at = {f"p{q}": round(float(np.percentile(seconds, q)), 4) for q in (50, 95, 99)}
    metric = "chunk, lookup and plan of a 32k prompt, p99"
    found = row("sglang.6", case, metric, at.pop("p99"), "ms", bar="< 0.5", samples=len(seconds))
    found |= at | {"parts_p50": dict(zip(("find", "choose", "prepare"), parts, strict=True))}
    made = {"prepare_by_torch_p50": round(float(np.median(plain)), 4)} if any(plain) else {}
    return found | made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    mirror, texts = full_registry(arguments.entries, random, arguments.device)
    metrics, rows = Metrics(60.0), []
    for case, holes in (("two_holes", 2), ("nine_holes", 9), ("nothing known", 0)):
        samples, plain = [], []
        for sample in range(arguments.samples + 20):
            text = texts[int(random.integers(len(texts)))]
            fresh = random.integers(0, 129_280, LENGTH, dtype=np.int64)
            ids = prompt(text, holes, random) if holes else fresh
            taken, reused, otherwise = plan(mirror, ids, metrics, arguments.device)
            if (reused > LENGTH * 0.98) != bool(holes):
                raise SystemExit(f"{case}: {reused} of {LENGTH} tokens would be moved")
            if sample >= 20:
                samples.append(np.diff(taken) * 1e3)
                plain.append(otherwise * 1e3)
        rows.append(case_row(case, np.array(samples), plain))
        rows[-1]["entries"] = int(mirror.registry.stats()["fingerprints"])
        print(rows[-1])
    name = f"{platform.machine()}, {arguments.device}, Python {platform.python_version()}"
    save(arguments.out, rows, machine=name)


if __name__ == "__main__":
    main()
