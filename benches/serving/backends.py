"""A model folder -> decode throughput of SGLang's attention backends and ours, as result rows.

One engine after the other on the same device, each with the same prompts. Decode is what two runs
over cached prompts differ by: the same batch asked for few tokens and for many.

    python benches/serving/backends.py --model FOLDER --out benches/serving/results/backends.json
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from common import Ids, Prompts, Row, Server, machine, vocabulary

FEW, MANY = 8, 136
CASES = ((1, 4096), (1, 32_768), (1, 131_072), (16, 4096), (16, 32_768), (128, 4096))
OURS, THEIRS = "irminsul", ("flashinfer", "flashmla", "triton")


def decode_rate(server: Server, prompts: list[Ids], rounds: int) -> list[float]:
    """Tokens per second over the tokens after the first few, once for each round."""
    server.closed_loop([[ids] for ids in prompts], len(prompts), 1)
    rates = []
    for _ in range(rounds):
        seconds = {
            tokens: server.closed_loop([[ids] for ids in prompts], len(prompts), tokens).seconds
            for tokens in (FEW, MANY)
        }
        rates.append(len(prompts) * (MANY - FEW) / (seconds[MANY] - seconds[FEW]))
    return rates


def measure(arguments: argparse.Namespace, backend: str) -> dict[str, Any]:
    """Start an engine with one backend and measure all cases; a failure is a result too."""
    found: dict[str, Any] = {"rates": {}, "tokens": []}
    options = {"attention_backend": backend, "page_size": 64, **json.loads(arguments.engine)}
    server = Server(arguments.model, "stock", **options)
    try:
        for batch, context in arguments.cases:
            made = Prompts(context, vocabulary(arguments.model), seed=batch + context)
            prompts = [made.fresh(context) for _ in range(batch)]
            server.flush()
            rates = decode_rate(server, prompts, arguments.rounds)
            found["rates"][batch, context] = rates
            found["tokens"].append(server.serve(prompts[0], tokens=16).tokens)
            print(
                f"{backend:<11} batch {batch:<4} context {context:<7} "
                f"{statistics.median(rates):9.1f} tokens/s",
                flush=True,
            )
    finally:
        server.stop()
    return found


def rows_of(found: dict[str, dict[str, Any]], cases: list[tuple[int, int]]) -> list[Row]:
    """Our rate beside the best of the others, and how many first tokens are the same."""
    rows = []
    for index, case in enumerate(cases):
        rates = {name: result["rates"].get(case) for name, result in found.items()}
        medians = {name: statistics.median(values) for name, values in rates.items() if values}
        rivals = {name: value for name, value in medians.items() if name != OURS}
        if OURS not in medians or not rivals:
            continue
        best = max(rivals, key=lambda name: rivals[name])
        same = [
            a == b for a, b in zip(*(found[n]["tokens"][index] for n in (OURS, best)), strict=False)
        ]
        rows.append(
            {
                "bar_id": "backend.1",
                "case": f"batch {case[0]}, context {case[1]}",
                "metric": "decode throughput",
                "value": round(medians[OURS], 1),
                "unit": "tokens/s",
                "rival": f"{best}, the best of {', '.join(rivals)}",
                "rival_value": round(rivals[best], 1),
                "bar": ">= the rival, within spread",
                "samples": [round(rate, 1) for rate in rates[OURS] or []],
                "equal_tokens": f"{sum(same)} of {len(same)}",
            }
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="folder with a config.json; random weights")
    parser.add_argument("--out", type=Path, help="results file to write")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backends", default=",".join((OURS, *THEIRS)))
    parser.add_argument("--cases", type=json.loads, default=[list(case) for case in CASES])
    parser.add_argument("--engine", default='{"mem_fraction_static": 0.8}', help="JSON")
    arguments = parser.parse_args()
    arguments.cases = [(batch, context) for batch, context in arguments.cases]
    found = {}
    for backend in arguments.backends.split(","):
        began = time.perf_counter()
        try:
            found[backend] = measure(arguments, backend)
        except Exception as error:
            print(f"{backend}: {error}", flush=True)
        print(f"# {backend}: {time.perf_counter() - began:.1f} s", flush=True)
    rows = rows_of(found, arguments.cases)
    if arguments.out:
        report = {"machine": machine(), "command": shlex.join(["python", *sys.argv]), "rows": rows}
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    for row in rows:
        print(row["case"], row["value"], row["rival"], row["rival_value"], row["equal_tokens"])
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
