"""A model folder and a list of steps -> one JSON file of result rows per step.

Two SGLang engines share the device, one as SGLang is and one with irminsul; each starts when a step
first asks for it. Random weights: times and energy do not depend on what a model says.

    python benches/serving/run.py --model FOLDER --out DIR --steps first_token=100,recorded=90

The number behind a step is how many seconds it may take; it then stops taking samples.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from pathlib import Path

from common import Bench, Clock, Server, sessions, vocabulary
from rows import save, show
from steps import STEPS


class Engines:
    """Engines by backend, each started when it is first asked for."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._running: dict[str, Server] = {}

    def __call__(self, backend: str) -> Server:
        if backend not in self._running:
            began = time.perf_counter()
            options = json.loads(self._arguments.engine)
            if self._arguments.max_total_tokens:
                options["max_total_tokens"] = self._arguments.max_total_tokens
            self._running[backend] = Server(self._arguments.model, backend, **options)
            print(f"# {backend} engine up in {time.perf_counter() - began:.1f} s", flush=True)
        return self._running[backend]

    def stop(self) -> None:
        for server in self._running.values():
            server.stop()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="folder with a config.json; random weights")
    parser.add_argument("--out", type=Path, required=True, help="folder for the result files")
    parser.add_argument("--steps", required=True, help=f"NAME=SECONDS,...; of {', '.join(STEPS)}")
    parser.add_argument("--length", type=int, default=32_768, help="prompt length of the bars")
    parser.add_argument("--samples", type=int, default=30)
    parser.add_argument("--calls", default="", help="recorded calls, made by pack.py")
    parser.add_argument("--max-total-tokens", type=int, default=300_000)
    parser.add_argument(
        "--engine",
        default='{"attention_backend": "flashinfer", "mem_fraction_static": 0.6}',
        help="engine arguments as JSON",
    )
    return parser.parse_args()


def main() -> int:
    arguments = parsed()
    # For the step that compares both forms of attention; nothing else has such request ids.
    os.environ["IRMINSUL_TEST_FORM"] = "1"
    import sglang

    engines, failed = Engines(arguments), 0
    calls = sessions(arguments.calls) if arguments.calls else []
    options = json.loads(arguments.engine)
    for name, _, seconds in (step.partition("=") for step in arguments.steps.split(",")):
        began = time.perf_counter()
        bench = Bench(
            server=engines,
            vocabulary=vocabulary(arguments.model),
            length=arguments.length,
            samples=arguments.samples,
            clock=Clock(float(seconds or 60)),
            sessions=calls,
        )
        try:
            rows = STEPS[name](bench)
        except Exception:
            traceback.print_exc()
            failed += 1
            continue
        save(arguments.out / f"{name}.json", rows, sglang=sglang.__version__, engine=options)
        print(f"# {name}: {time.perf_counter() - began:.1f} s", flush=True)
        show(rows)
    engines.stop()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
