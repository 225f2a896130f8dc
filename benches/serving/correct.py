"""Attention backends and page sizes on a GPU -> whether moved rows and answers are right.

The engine tests' own scenarios, on a model small enough to be computed in plain fp32 beside it:

- a document that moved: its layer-0 latents and keys against the model's own at the new position,
  and rows and logits of the tokens computed around it against a reference that does the same;
- a path that the tree holds approximately, asked for exactly.

What happens under eviction and aborts is `soak.py`'s to find out.

    python benches/serving/correct.py --out benches/serving/results/correct.json \
        --engines flashinfer:1,triton:1,flashinfer:64
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import GPU_HEADS, free_port
from irminsul.demo.model import TinyModel
from rows import Row, add, row

DRIVER = Path(__file__).parents[2] / "tests" / "integrations" / "sglang" / "driver" / "main.py"
SCENARIOS = ("exact", "shifted")


def drive(
    engine: str, device: str, seconds: float, scenarios: list[str]
) -> tuple[dict[str, Any], str]:
    """Run the scenarios on one engine, named BACKEND:PAGE.

    Returns
    -------
    facts
        What the scenarios found that came to their end.
    failure
        Why others did not; empty if all did.
    """
    with tempfile.TemporaryDirectory() as folder:
        places = {name: Path(folder) / name for name in ("model", "dump", "facts")}
        places["dump"].mkdir()
        TinyModel(**(GPU_HEADS if device == "cuda" else {})).write(places["model"])
        config = _config(engine, device, places, scenarios)
        given = Path(folder) / "config"
        given.write_text(json.dumps(config))
        command = [sys.executable, str(DRIVER), str(given)]
        failure = ""
        try:
            subprocess.run(command, check=True, timeout=seconds, env=_environment())
        except subprocess.SubprocessError as error:
            failure = f"{type(error).__name__} {getattr(error, 'returncode', '')}".strip()
        found = places["facts"]
        facts: dict[str, Any] = json.loads(found.read_text()) if found.exists() else {}
        return facts, failure


def _config(
    engine: str, device: str, places: dict[str, Path], scenarios: list[str]
) -> dict[str, Any]:
    """Return what the driver is to do."""
    backend, _, page = engine.partition(":")
    return {
        **{name: str(place) for name, place in places.items()},
        "device": device,
        "page_size": int(page or 1),
        "chunk": -1,
        "overlap": True,
        "pool": 8192,
        "holes": [],
        "shifts": False,
        "scenarios": scenarios,
        "arguments": {"attention_backend": backend, "nccl_port": free_port()},
        # So small a model computes what it would move in less time; their ids say move it.
        "environment": {"IRMINSUL_TEST_FORM": "1"},
    }


def _environment() -> dict[str, str]:
    folders = [str(DRIVER.parent), os.environ.get("PYTHONPATH", "")]
    # The reference is small: more threads than this wait for each other.
    threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "4")}
    return {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(filter(None, folders))}


def rows_of(engine: str, facts: dict[str, Any]) -> list[Row]:
    """Return one row for each thing that must hold."""
    found: list[Row] = []
    for shift in ("later", "earlier") if "shifted" in facts else ():
        found += _moved(f"{engine}, {shift}", facts["shifted"][shift])
    if "exact" in facts:
        exact = facts["exact"]
        # A prefix hit is computed in other shapes, so a GPU's last bits differ there.
        equal = exact["tainted"] > 0 and exact["cold_equal"]
        found.append(_row(engine, "exact answers beside approximate rows are equal", equal, "== 1"))
    return found


def _moved(case: str, moved: dict[str, Any]) -> list[Row]:
    oracle = moved["oracle"]
    return [
        _row(case, "moved tokens", moved["reused"], "> 0"),
        _row(case, "latents copied bit for bit", moved["latent_copied"], "== 1"),
        _row(case, "layer-0 keys, relative error", moved["key"]["relative"], "<= 0.003"),
        _row(case, "layer-0 keys, error in ulps", moved["key"]["ulps"], "<= 2"),
        _row(case, "rows to the reference, over cold", _over(oracle, "rows"), "<= 2"),
        _row(case, "logits to the reference, over cold", _over(oracle, "logits"), "<= 2"),
        _row(case, "what that would show at most", oracle["logits_apart"] / oracle["logits"], ""),
    ]


def _over(oracle: dict[str, float], name: str) -> float:
    return oracle[name] / oracle[f"{name}_cold"]


def _row(case: str, metric: str, value: Any, bar: str) -> Row:
    value = round(float(value), 5)
    return row("sglang.correct", case, metric, value, "1", bar=bar or None, samples=1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--engines", default="flashinfer:1", help="BACKEND:PAGE,...")
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--seconds", type=float, default=180.0, help="for one engine")
    arguments = parser.parse_args()
    rows: list[Row] = []
    failed = 0
    for engine in arguments.engines.split(","):
        began = time.perf_counter()
        facts, failure = drive(
            engine, arguments.device, arguments.seconds, arguments.scenarios.split(",")
        )
        failed += bool(failure)
        took = {name: round(s) for name, s in facts.items() if name.endswith("seconds")}
        print(f"# {engine}: {time.perf_counter() - began:.1f} s {failure} {took}", flush=True)
        add(arguments.out, rows, rows_of(engine, facts))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
