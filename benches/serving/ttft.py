"""Random prompts whose text moved -> time to first token and energy, against cold and prefix hits.

One SGLang engine with irminsul, random weights. Each sample draws fresh token ids and sends, one
after the other: the prompt cold, the same prompt with a new tail (an exact prefix hit), and the
prompt's text moved behind a new header (two holes) or cut by insertions (nine holes). Every sample
is a pair of all cases, so drift of the machine falls on each alike.

    python benches/serving/ttft.py --model FOLDER --out benches/serving/results/ttft.json
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
BAR_LENGTH = 32_768  # prompt length that the bars speak of; others are reported beside them
SINK_TOKENS = 32  # rows computed at these positions stay where they are


class Prompts:
    """Draws prompts: one cold text and the variants that reuse it."""

    def __init__(self, length: int, vocabulary: int, seed: int) -> None:
        self.length = length
        self._vocabulary = vocabulary
        self._random = np.random.default_rng(seed)

    def fresh(self, count: int) -> Ids:
        return self._random.integers(1000, self._vocabulary - 1000, count, dtype=np.int64)

    def prefix(self, cold: Ids, tail: int = 100) -> Ids:
        return np.concatenate([cold[: self.length - tail], self.fresh(tail)])

    def holes(self, cold: Ids, count: int) -> Ids:
        """Return a prompt of the same length with `count` holes: a header, insertions, a tail."""
        new = 150 if count == 2 else 10 * count + 60
        header, tail = new - 10 * (count - 2) - 50, 50
        body = cold[SINK_TOKENS : SINK_TOKENS + self.length - new]
        parts = [self.fresh(header)]
        for at, part in enumerate(np.array_split(body, count - 1)):
            parts += [self.fresh(10), part] if at else [part]
        return np.concatenate([*parts, self.fresh(tail)])


def serve(engine: Any, ids: Ids) -> tuple[float, int]:
    """Return milliseconds to the first token and the number of cached tokens."""
    started = time.perf_counter()
    reply = engine.generate(
        input_ids=ids.tolist(),
        sampling_params={"temperature": 0, "max_new_tokens": 1, "ignore_eos": True},
    )
    elapsed = (time.perf_counter() - started) * 1e3
    return elapsed, int(reply["meta_info"]["cached_tokens"])


def measure(engine: Any, prompts: Prompts, samples: int) -> dict[str, list[tuple[float, int]]]:
    """Return per case the samples, taken in turn."""
    cases: dict[str, Callable[[Ids], Ids]] = {
        "prefix": prompts.prefix,
        "two_holes": lambda cold: prompts.holes(cold, 2),
        "nine_holes": lambda cold: prompts.holes(cold, 9),
    }
    taken: dict[str, list[tuple[float, int]]] = {"cold": [], **{case: [] for case in cases}}
    for sample in range(samples):
        engine.flush_cache()
        cold = prompts.fresh(prompts.length)
        taken["cold"].append(serve(engine, cold))
        order = list(cases)
        order = order[sample % 3 :] + order[: sample % 3]
        for case in order:
            taken[case].append(serve(engine, cases[case](cold)))
    return taken


def energy(engine: Any, prompts: Prompts, repeats: int) -> dict[str, float]:
    """Return joules per request, idle power included, by the GPU's total energy counter."""
    import pynvml

    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)

    def spent(requests: list[Ids]) -> float:
        time.sleep(0.3)
        before = pynvml.nvmlDeviceGetTotalEnergyConsumption(device)
        for ids in requests:
            serve(engine, ids)
        return (pynvml.nvmlDeviceGetTotalEnergyConsumption(device) - before) / 1e3 / len(requests)

    engine.flush_cache()
    texts = [prompts.fresh(prompts.length) for _ in range(repeats)]
    cold = spent(texts)
    moved = spent([prompts.holes(text, 2) for text in texts])
    prefix = spent([prompts.prefix(text) for text in texts])
    return {"cold": cold, "two_holes": moved, "prefix": prefix}


def row(bar_id: str, case: str, taken: Any, rival: str, bar: str | None) -> dict[str, Any]:
    """Return one result: the median of the pairwise ratios, with the spread beside it."""
    mine = [milliseconds for milliseconds, _ in taken[case]]
    other = [milliseconds for milliseconds, _ in taken[rival]]
    ratios = sorted(a / b for a, b in zip(mine, other, strict=True))
    return {
        "bar_id": bar_id,
        "case": case,
        "metric": f"time to first token, ratio to {rival}",
        "value": round(statistics.median(ratios), 4),
        "unit": "1",
        "rival": rival,
        "rival_value": 1.0,
        "bar": bar,
        "samples": len(ratios),
        "spread": [round(ratios[len(ratios) // 10], 4), round(ratios[-len(ratios) // 10], 4)],
        "median_ms": round(statistics.median(mine), 2),
        "rival_median_ms": round(statistics.median(other), 2),
        "cached_tokens": int(statistics.median(count for _, count in taken[case])),
    }


def machine() -> str:
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor()
    return f"{name}, torch {torch.__version__}, Python {platform.python_version()}"


def report(taken: Any, joules: dict[str, float], length: int) -> list[dict[str, Any]]:
    rows = [
        row("sglang.1", "two_holes", taken, "prefix", "<= 1.10"),
        row("sglang.1", "two_holes", taken, "cold", "<= 0.125"),
        row("sglang.1", "nine_holes", taken, "prefix", "<= 1.50"),
        row("sglang.1", "prefix", taken, "cold", None),
    ]
    if joules:
        rows.append(
            {
                "bar_id": "sglang.3",
                "case": "two_holes",
                "metric": "energy per request, ratio to cold",
                "value": round(joules["two_holes"] / joules["cold"], 4),
                "unit": "1",
                "rival": "cold",
                "rival_value": 1.0,
                "bar": "<= 0.10",
                "samples": 1,
                "joules": {case: round(value, 2) for case, value in joules.items()},
            }
        )
    if length != BAR_LENGTH:
        rows = [{**entry, "bar_id": f"{entry['bar_id']}-{length}", "bar": None} for entry in rows]
    return [{**entry, "prompt_tokens": length} for entry in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="folder with a config.json; random weights")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lengths", default="32768", help="prompt lengths, comma-separated")
    parser.add_argument("--samples", type=int, default=30)
    parser.add_argument("--energy-repeats", type=int, default=20)
    parser.add_argument("--attention-backend", default="flashinfer")
    parser.add_argument("--chunked-prefill-size", type=int, default=None)
    parser.add_argument("--max-total-tokens", type=int, default=None)
    arguments = parser.parse_args()
    import sglang

    options = {
        name: value
        for name in ("chunked_prefill_size", "max_total_tokens")
        if (value := getattr(arguments, name)) is not None
    }
    engine = sglang.Engine(
        model_path=arguments.model,
        load_format="dummy",
        skip_tokenizer_init=True,
        grammar_backend="none",
        attention_backend=arguments.attention_backend,
        radix_cache_backend="irminsul",
        mem_fraction_static=0.6,
        **options,
    )
    vocabulary = json.loads((Path(arguments.model) / "config.json").read_text())["vocab_size"]
    rows = []
    for length in map(int, arguments.lengths.split(",")):
        prompts = Prompts(length, vocabulary, seed=length)
        measure(engine, prompts, samples=3)
        taken = measure(engine, prompts, arguments.samples)
        joules = energy(engine, prompts, arguments.energy_repeats)
        rows += report(taken, joules, length)
    engine.shutdown()
    result = {
        "machine": machine(),
        "command": shlex.join(["python", *sys.argv]),
        "sglang": sglang.__version__,
        "attention_backend": arguments.attention_backend,
        "rows": rows,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    for entry in rows:
        print(
            f"{entry['prompt_tokens']:>6} {entry['case']:<11} {entry['metric']:<40} "
            f"{entry['value']:<8} bar {entry['bar'] or 'none':<10} {entry.get('median_ms', '')} ms "
            f"vs {entry.get('rival_median_ms', '')} ms, cached {entry.get('cached_tokens', '')}"
        )


if __name__ == "__main__":
    main()
