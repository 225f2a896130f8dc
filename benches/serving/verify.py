"""Attention backends and page sizes -> what `irminsul verify` finds of live servers with them.

Must not know how the verdict comes about. The servers run a random checkpoint of unit variance.

    python benches/serving/verify.py --servers flashinfer:64,triton:1,fa3:1 \
        --out benches/serving/results/verify.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import launch
from common import GPU_HEADS, free_port
from irminsul.demo.model import TinyModel
from rows import Row, add, row

# Layers enough that moving a document takes less time than computing it.
LAYERS = 16
SIZES = {"vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1024}
SIZES |= GPU_HEADS
_HERE = [sys.executable, "-m"]


@contextlib.contextmanager
def served(model: str, server: str, arguments: argparse.Namespace) -> Iterator[str]:
    """Start a server, named BACKEND:PAGE, and yield its address once it answers."""
    backend, _, page = server.partition(":")
    port = free_port()
    command = [*_HERE, "sglang.launch_server", "--model-path", model, "--port", str(port)]
    command += ["--nccl-port", str(port + 1)]
    command += ["--attention-backend", backend, "--page-size", page or "1"]
    command += ["--radix-cache-backend", "irminsul", "--skip-tokenizer-init", "--enable-metrics"]
    command += ["--skip-server-warmup", "--max-total-tokens", "100000", *arguments.flags.split()]
    log = arguments.out.with_name(f"{arguments.out.stem}-{backend}-{page or 1}.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    address = f"http://127.0.0.1:{port}"
    with launch.running(command, address, log, arguments.seconds):
        yield address


def verified(address: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the report of `irminsul verify` on a server."""
    command = [*_HERE, "irminsul", "verify", "--json", "--base-url", address]
    command += ["--documents", str(arguments.documents), "--words", str(arguments.words)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=arguments.seconds, check=False
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def rows_of(server: str, report: dict[str, Any]) -> list[Row]:
    """Return how many checks passed, and how far answers are from cold ones."""
    checks = report["checks"]
    passed = sum(check["passed"] for check in checks)
    case = f"{report['server']['version']}, {server}"
    told = row("sglang.verify", case, "checks passed", passed, "1", bar=f"== {len(checks)}")
    cold = report["against_cold"]["cold again"]
    return [
        told | {"samples": len(checks), "said": {c["name"]: c["detail"] for c in checks}},
        *(
            row("sglang.verify", case, f"{name}: KL to cold of the first token, median", *values)
            | {"samples": found["answers"], "flips": found["flips"], "rival": "cold again"}
            | {"rival_value": float(f"{cold['kl_median']:.3g}")}
            for name, found in report["against_cold"].items()
            if (values := (float(f"{found['kl_median']:.3g}"), "nats"))
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--servers", default="flashinfer:1", help="BACKEND:PAGE,...")
    parser.add_argument("--documents", type=int, default=8)
    parser.add_argument("--words", type=int, default=4000)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--seconds", type=float, default=180.0, help="for a start, and a report")
    parser.add_argument("--flags", default="", help="more of SGLang's, in one string")
    arguments = parser.parse_args()
    rows: list[Row] = []
    failed = 0
    with tempfile.TemporaryDirectory(prefix="irminsul-verify-") as folder:
        TinyModel(**{**SIZES, "layers": arguments.layers}).write(folder)
        for server in arguments.servers.split(","):
            try:
                with served(folder, server, arguments) as address:
                    fresh = rows_of(server, verified(address, arguments))
            except (RuntimeError, OSError, ValueError, subprocess.SubprocessError) as error:
                print(f"# {server}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                failed += 1
                continue
            add(arguments.out, rows, fresh)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
