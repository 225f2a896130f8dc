"""Architectures -> results/energy.json: joules and time to first token of cold, prefix, moved text.

Needs an NVIDIA GPU and SGLang. Usage:
    python benches/studies/energy/run.py --only GQA MHA MLA --seconds 40   seconds for each, besides
    about a minute in which the engine starts and compiles
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "serving"))

from architectures import ARCHITECTURES, VOCABULARY, write  # noqa: E402
from common import Clock, Ids, Prompts, Server, energy_counter  # noqa: E402
from rows import Row, save  # noqa: E402

TEXTS = 3
"""Cold requests whose energy is read together; the counter moves in steps of some 100 ms."""
NEW = 150
"""Tokens that a short hit leaves to compute."""
SHARE = 83
"""Per cent of a longer hit that is known: what the paper says its cache recovers."""
PAPER = {"hybrid": "about 0", "83": 63}
"""Per cent of energy saved in arXiv 2605.05696; elsewhere 63 to 86."""
ENGINE: dict[str, dict[str, Any]] = {
    # Kimi's latent layers decode by matrices that only a checkpoint's loader makes, and overlap
    # decodes a token that nobody asked for.
    "KDA hybrid": {
        "disable_overlap_schedule": True,
        "mamba_radix_cache_strategy": "extra_buffer",
    },
}
"""What an architecture needs besides."""


@dataclass(frozen=True)
class Kind:
    """One sort of hit: what makes its prompt of a cold text, and how many are read together."""

    make: Callable[[Ids], Ids]
    count: int


Seen = tuple[float, float, float]
"""Joules and seconds to the first token per request, and the share that was cached."""


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
            with tempfile.TemporaryDirectory() as folder:
                server = start(name, Path(folder), options.length, options.engine)
                try:
                    show(measure(name, server, options.length, options.seconds, options.out))
                finally:
                    server.stop()
        except Exception:
            traceback.print_exc()
            failed += 1
    return 1 if failed else 0


def start(name: str, folder: Path, length: int, options: dict[str, Any]) -> Server:
    """Start an engine; only latent attention has irminsul, and flashinfer's kernels for it."""
    latent = name == "MLA"
    arguments = {
        # SGLang refuses Triton's attention for models that begin with a Mamba2 layer.
        "attention_backend": "triton" if name in ("GQA", "MHA", "GDN hybrid") else "flashinfer",
        "mem_fraction_static": 0.88,
        # Room for the texts and what hits add: a copy of each text where it is moved.
        "max_total_tokens": 22 * length if latent else 4 * length + length // 2,
        # The holes of a prompt are rows of one batch for irminsul, which this bounds.
        "max_running_requests": 256 if latent else 8,
        "disable_cuda_graph": True,
        **ENGINE.get(name, {}),
        **options,
    }
    return Server(str(write(name, folder)), "irminsul" if latent else "stock", **arguments)


def measure(name: str, server: Server, length: int, seconds: float, out: Path) -> list[Row]:
    """Take cold and all kinds of hits in turn; write rows after each round, lest it be cut off."""
    prompts = Prompts(length, VOCABULARY, seed=0)
    hits = kinds(prompts, length, moves=server.backend == "irminsul")
    meter = Meter()
    _round(server, meter, prompts, {kind: Kind(hit.make, 1) for kind, hit in hits.items()}, 1)
    taken: dict[str, list[Seen]] = {}
    rows: list[Row] = []
    clock = Clock(seconds)
    while clock.goes_on(len(taken.get("cold", [])), 2):
        for kind, seen in _round(server, meter, prompts, hits, TEXTS).items():
            taken.setdefault(kind, []).append(seen)
        counts = {"cold": TEXTS, **{kind: hit.count for kind, hit in hits.items()}}
        rows = [r for kind in taken for r in _rows(name, kind, taken, counts[kind])]
        merge(out, rows)
    return rows


def kinds(prompts: Prompts, length: int, *, moves: bool) -> dict[str, Kind]:
    """Hits that leave little to compute, and such as the paper's; both moved, too, where it is."""
    most, part = length - NEW, length * SHARE // 100
    few, many = f"{NEW} tokens new", f"{SHARE} % known"
    made = {
        f"prefix hit, {few}": Kind(lambda cold: prompts.prefix(cold, most), 12),
        f"prefix hit, {many}": Kind(lambda cold: prompts.prefix(cold, part), 6),
    }
    if moves:
        made[f"irminsul hit, {few}"] = Kind(lambda cold: prompts.holes(cold, 2, most), 12)
        made[f"irminsul hit, {many}"] = Kind(lambda cold: prompts.holes(cold, 9, part), 6)
    return made


def _round(
    server: Server, meter: Meter, prompts: Prompts, hits: dict[str, Kind], texts: int
) -> dict[str, Seen]:
    """Serve new texts cold, then hits on them, kind by kind."""
    server.flush()
    cold = [prompts.fresh(prompts.length) for _ in range(texts)]
    seen = {"cold": meter.group(server, cold)}
    for kind, hit in hits.items():
        asked = [hit.make(cold[index % texts]) for index in range(hit.count)]
        seen[kind] = meter.group(server, asked)
    return seen


class Meter:
    """The GPU's total energy counter, idle power included."""

    def __init__(self) -> None:
        self._read = energy_counter()

    def group(self, server: Server, requests: Sequence[Ids]) -> Seen:
        """Serve requests one by one, from one step of the counter to one behind the last."""
        time.sleep(0.1)
        before = self._step()
        replies = [server.serve(ids) for ids in requests]
        joules = (self._step() - before) / len(requests)
        cached = sum(reply.cached for reply in replies) / sum(reply.prompt for reply in replies)
        return joules, statistics.median(reply.first for reply in replies), cached

    def _step(self) -> float:
        """Wait until the counter moves, half a second at most, and read it."""
        begin, old = time.perf_counter(), self._read()
        while (now := self._read()) == old and time.perf_counter() - begin < 0.5:
            time.sleep(0.001)
        return now


def _rows(name: str, kind: str, taken: dict[str, list[Seen]], count: int) -> list[Row]:
    """Medians of one case, and what it saves against cold, round by round."""
    case, values = f"{name}, {kind}", taken[kind]
    joules, seconds, cached = (statistics.median(column) for column in zip(*values, strict=True))
    samples = count * len(values)
    rows = [
        _row(case, "energy per request", joules, "J", samples),
        _row(case, "time to first token", 1e3 * seconds, "ms", samples),
        _row(case, "tokens from cache", 100 * cached, "%", samples),
    ]
    if kind != "cold":
        for index, metric in enumerate(("energy saved", "time saved")):
            pairs = zip(values, taken["cold"], strict=True)
            saved = statistics.median(100 * (1 - mine[index] / cold[index]) for mine, cold in pairs)
            rows.append(_row(case, metric, saved, "%", samples))
    return rows


def _row(case: str, metric: str, value: float, unit: str, samples: int) -> Row:
    found = {"bar_id": "quality.energy", "case": case, "metric": metric}
    found |= {"value": float(f"{value:.4g}"), "unit": unit, "samples": samples}
    if metric != "energy saved":
        return found
    paper = next((said for part, said in PAPER.items() if part in case), "63-86")
    return found | {"rival": "paper", "rival_value": paper}


def show(rows: Sequence[Row]) -> None:
    for row in rows:
        print(f"{row['case']:38} {row['metric']:20} {row['value']:10} {row['unit']}", flush=True)


def merge(path: Path, rows: list[dict[str, Any]]) -> None:
    """Put rows into the results file, in place of older ones of the same cases."""
    import sglang

    old = json.loads(path.read_text())["rows"] if path.exists() else []
    cases = {row["case"] for row in rows}
    kept = [row for row in old if row["case"] not in cases]
    save(path, kept + rows, sglang=sglang.__version__)


if __name__ == "__main__":
    sys.exit(main())
