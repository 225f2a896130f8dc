"""Prompt length, holes and share moved -> results/limits.json: where computing is faster.

Needs an NVIDIA GPU and SGLang. Usage: python benches/studies/limits/run.py [--seconds 300]
    [--only "1024 tokens, 90 % moved, 2 holes" ...]   measure these again; other rows stay
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "serving"))
sys.path.insert(0, str(HERE.parent / "energy"))

from architectures import VOCABULARY, write  # noqa: E402
from common import Case, Clock, Ids, Prompts, Server, interleaved  # noqa: E402
from rows import Row, ratio_row, save  # noqa: E402

LENGTHS = (1_024, 4_096, 2_048, 8_192, 512, 32_768)
"""In the order in which they are measured: where reuse may lose first."""
SHARES = (10, 30, 50, 70, 90)
HOLES = (2, 9, 33, 129)
SHORTEST_SPAN = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--samples", type=int, default=15)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "limits.json")
    parser.add_argument("--engine", type=json.loads, default={})
    parser.add_argument("--only", nargs="+", default=[])
    options = parser.parse_args()
    arguments = {"attention_backend": "flashinfer", "mem_fraction_static": 0.8, **options.engine}
    with tempfile.TemporaryDirectory() as folder:
        server = Server(str(write("MLA", Path(folder))), "irminsul", **arguments)
        try:
            measure(server, options.seconds, options.samples, options.out, options.only)
        finally:
            server.stop()


def measure(
    server: Server, seconds: float, samples: int, out: Path, only: Sequence[str] = ()
) -> None:
    """Measure length by length; results are written after each, lest the run be cut off."""
    rows = json.loads(out.read_text())["rows"] if only and out.exists() else []
    asked = [length for length in LENGTHS if not only or any(_length_of(c) == length for c in only)]
    for length in asked:
        cases = {case: make for case, make in _cases(length).items() if not only or case in only}
        found = _measured(server, length, cases, samples, Clock(seconds / len(asked)))
        rows = [row for row in rows if row["case"] not in cases] + found
        rows.sort(key=lambda row: _length_of(row["case"]))
        _save(out, rows)
        for row in found:
            print(f"{row['case']:44} {row['value']:8} of cold, {row['cached']:5} % taken over")


def _length_of(case: str) -> int:
    return int(case.split()[0])


def _save(out: Path, rows: Sequence[Row]) -> None:
    """Write what is measured so far."""
    import sglang

    save(out, rows, sglang=sglang.__version__)


Make = Callable[[Prompts, Ids], Ids]
"""What makes a case's prompt of a cold text."""


def _cases(length: int) -> dict[str, Make]:
    """All shares and hole counts that fit one prompt length."""
    cases: dict[str, Make] = {}
    for share, holes in itertools.product(SHARES, HOLES):
        moved = length * share // 100
        if moved // (holes - 1) < SHORTEST_SPAN or length - moved < 4 * holes:
            continue
        case = f"{length} tokens, {share} % moved, {holes} holes"
        cases[case] = lambda prompts, cold, holes=holes, moved=moved: prompts.holes(
            cold, holes, moved
        )
    return cases


def _measured(
    server: Server, length: int, cases: dict[str, Make], samples: int, clock: Clock
) -> list[Row]:
    """Take the cases of one prompt length in turn with cold prompts."""
    prompts = Prompts(length, VOCABULARY, seed=length)
    asked: dict[str, Case] = {
        case: lambda cold, make=make: (make(prompts, cold), {}) for case, make in cases.items()
    }
    interleaved(server, prompts, asked, 1, Clock(1e9))  # kernels are compiled for new shapes
    taken = interleaved(server, prompts, asked, samples, clock)
    first = {name: [reply.first for reply in replies] for name, replies in taken.items()}
    rows = []
    for case in cases:
        row = ratio_row("quality.limits", case, first[case], "cold", first["cold"], "<= 1.02")
        rows.append({**row, "cached": round(100 * taken[case][-1].cached / length, 1)})
    return rows


if __name__ == "__main__":
    main()
