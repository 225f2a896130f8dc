"""Trials under every way of reusing -> results/consistency.json, with confidence intervals.

Usage: python benches/studies/consistency/run.py [--samples 1250] [--scenario NAME ...]
       [--state FILE --seconds 520]   continue an earlier run for so long
       [--check]                      32 samples of short prompts, written to build/studies
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).parent
sys.path[1:1] = [str(HERE.parents[1]), str(HERE.parent / "models")]

import arms  # noqa: E402
import results_file  # noqa: E402
import scenarios  # noqa: E402
import torch  # noqa: E402
import workers  # noqa: E402
from tally import Tally  # noqa: E402

WEIGHTS = HERE.parent / "models" / "weights"
NAMES = [arm.name for arm in (*arms.ARMS, *arms.REPAIRS)]
SAVE_EVERY = 10.0


def main() -> None:
    options = _options()
    tally = Tally.read(options.state) if options.state else Tally()
    begin = saved = time.monotonic()
    wanted = [
        block
        for scenario in options.scenario
        for block in workers.blocks(scenario, options.samples, options.batch, options.first)
        if not tally.has(scenario, block.first)
    ]
    for block, samples in workers.run(wanted, options, options.seconds):
        tally.add(block.scenario, block.first, block.end, samples)
        now = time.monotonic()
        trials = tally.trials
        print(f"{block.scenario} {trials[block.scenario]} {now - begin:.0f} s", flush=True)
        if options.state and now - saved > SAVE_EVERY:
            tally.write(options.state)
            saved = now
    if options.state:
        tally.write(options.state)
    _write(tally, options, torch.device(options.device))


def _write(tally: Tally, options: argparse.Namespace, device: torch.device) -> None:
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"{platform.machine()} CPU"
    command = "python benches/studies/consistency/run.py " + " ".join(sys.argv[1:])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows = list(tally.rows())
    options.out.write_text(as_text(f"{name}, torch {torch.__version__}", command, rows))
    for row in rows:
        if row["metric"] in ("accuracy", "kl_below_naive", "accuracy_against_noise_floor"):
            print(f"{row['case']:56} {row['metric']:28} {row['value']:8} {row['bar'] or ''}")


def as_text(machine: str, command: str, rows: Iterable[dict[str, object]]) -> str:
    """Text of a results file."""
    return results_file.text({"machine": machine, "command": command}, results_file.filled(rows))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    cuda = torch.cuda.is_available()
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--scenario", nargs="+", default=scenarios.SCENARIOS)
    parser.add_argument("--arms", nargs="+", choices=NAMES)
    parser.add_argument("--samples", type=int, default=1250)
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--documents", type=int, default=24)
    parser.add_argument("--batch", type=int, default=32, help="trials of one block")
    parser.add_argument("--workers", type=int, default=1, help="processes on the device")
    parser.add_argument("--chunk-tokens", type=int, default=16_384)
    parser.add_argument(
        "--reading", action="store_true", help="chains are told from their end to their start"
    )
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--state", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path, default=HERE / "results" / "consistency.json")
    parser.add_argument("--check", action="store_true", help="32 samples a cell, short prompts")
    if "--check" in sys.argv:
        parser.set_defaults(samples=32, tokens=256, documents=4, batch=16, chunk_tokens=1024)
        parser.set_defaults(workers=min(4, len(os.sched_getaffinity(0))))
        parser.set_defaults(out=Path("build/studies/consistency.json"))
    options = parser.parse_args()
    if not (options.weights / "config.json").exists():
        parser.error(f"no weights in {options.weights}: see benches/studies/models/README.md")
    return options


if __name__ == "__main__":
    main()
