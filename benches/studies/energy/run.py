"""Architectures -> results/energy.json: joules and time to first token of cold, prefix, moved text.

Needs an NVIDIA GPU and SGLang. Usage:
    python benches/studies/energy/run.py --only GQA MHA MLA --seconds 60   seconds for each, besides
    about 45 s in which the engine starts
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "serving"))

from architectures import ARCHITECTURES, VOCABULARY, write  # noqa: E402
from common import Clock, Ids, Prompts, Row, Server, machine  # noqa: E402

GROUP = 4
"""Requests whose energy is read together; the counter moves in steps of some 100 ms."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=ARCHITECTURES, default=list(ARCHITECTURES))
    parser.add_argument("--length", type=int, default=32_768)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "energy.json")
    parser.add_argument("--engine", type=json.loads, default={})
    options = parser.parse_args()
    failed = 0
    for name in options.only:
        try:
            rows = measure(name, options)
        except Exception:
            traceback.print_exc()
            failed += 1
            continue
        for row in rows:
            print(
                f"{row['case']:34} {row['metric']:28} {row['value']:10} {row['unit']}", flush=True
            )
    return 1 if failed else 0


def measure(name: str, options: argparse.Namespace) -> list[Row]:
    """Start an engine, measure all cases in turn until the time is over, stop it."""
    arguments = {
        "attention_backend": "flashinfer",
        "mem_fraction_static": 0.88,
        "max_running_requests": 8,
        "disable_cuda_graph": True,
        **options.engine,
    }
    backend = "irminsul" if name == "MLA" else "stock"
    with tempfile.TemporaryDirectory() as folder:
        server = Server(str(write(name, Path(folder))), backend, **arguments)
        try:
            return _cases(name, server, options)
        finally:
            server.stop()


def _cases(name: str, server: Server, options: argparse.Namespace) -> list[Row]:
    prompts = Prompts(options.length, VOCABULARY, seed=0)
    most = options.length - 150
    kinds: dict[str, Callable[[Ids], Ids]] = {"prefix hit": lambda cold: prompts.prefix(cold, most)}
    if server.backend == "irminsul":
        kinds["irminsul hit"] = lambda cold: prompts.holes(cold, 2, most)
    taken: dict[str, list[tuple[float, float, float]]] = {}
    meter, clock = Meter(), Clock(options.seconds)
    rows: list[Row] = []
    warm = True
    while clock.goes_on(len(taken.get("cold", [])), 3):
        server.flush()
        cold = [prompts.fresh(options.length) for _ in range(GROUP)]
        seen = {"cold": meter.group(server, cold)}
        for kind, make in kinds.items():
            seen[kind] = meter.group(server, [make(text) for text in cold])
        if not warm:
            for kind, values in seen.items():
                taken.setdefault(kind, []).append(values)
            rows = [row for kind, v in taken.items() for row in _rows(name, kind, v, taken)]
            merge(options.out, rows)  # a run that is cut short keeps what was measured
        warm = False
    return rows


class Meter:
    """The GPU's total energy counter, idle power included."""

    def __init__(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._read = pynvml.nvmlDeviceGetTotalEnergyConsumption
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        self._device = pynvml.nvmlDeviceGetHandleByIndex(int(first or 0))

    def group(self, server: Server, requests: list[Ids]) -> tuple[float, float, float]:
        """Joules and seconds to the first token per request, and the share that was cached."""
        time.sleep(0.2)
        before = self._read(self._device)
        replies = [server.serve(ids) for ids in requests]
        joules = (self._read(self._device) - before) / 1e3 / len(requests)
        cached = sum(reply.cached for reply in replies) / sum(reply.prompt for reply in replies)
        return joules, statistics.median(reply.first for reply in replies), cached


def _rows(
    name: str,
    kind: str,
    values: list[tuple[float, float, float]],
    taken: dict[str, list[tuple[float, float, float]]],
) -> list[Row]:
    """Medians of one case, and what it saves against cold, pair by pair."""
    case = f"{name}, {kind}"
    joules, seconds, cached = (statistics.median(column) for column in zip(*values, strict=True))
    rows = [
        _row(case, "energy per request", joules, "J", len(values)),
        _row(case, "time to first token", 1e3 * seconds, "ms", len(values)),
        _row(case, "tokens from cache", 100 * cached, "%", len(values)),
    ]
    if kind != "cold":
        for index, metric in enumerate(("energy saved", "time saved")):
            pairs = zip(values, taken["cold"], strict=True)
            saved = statistics.median(100 * (1 - mine[index] / cold[index]) for mine, cold in pairs)
            rows.append(_row(case, metric, saved, "%", len(values)))
    return rows


def _row(case: str, metric: str, value: float, unit: str, samples: int) -> Row:
    paper = "about 0" if "hybrid" in case else "63-86"
    return {
        "bar_id": "quality.energy",
        "case": case,
        "metric": metric,
        "value": float(f"{value:.4g}"),
        "unit": unit,
        "rival": "paper" if metric == "energy saved" else None,
        "rival_value": paper if metric == "energy saved" else None,
        "bar": None,
        "samples": samples * GROUP,
    }


def merge(path: Path, rows: list[dict[str, Any]]) -> None:
    """Put rows into the results file, in place of older ones of the same cases."""
    import sglang

    old = json.loads(path.read_text())["rows"] if path.exists() else []
    cases = {row["case"] for row in rows}
    result = {
        "machine": machine(),
        "command": shlex.join(["python", *sys.argv]),
        "sglang": sglang.__version__,
        "rows": [row for row in old if row["case"] not in cases] + rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
