"""Recorded traffic through engines with tiers -> what the tiers recover of local reuse.

    python benches/tiers/engines.py --prompts FILE.jsonl.zst --sessions 2 --out FILE.json

Needs SGLang on PYTHONPATH; runs on a CPU with a tiny model. Two measurements:

pool      Engine B serves each call with nothing of its own (it is flushed before every call), while
          engine A serves the same calls in order and writes them behind. What B reuses comes from
          the store; what A reuses is what B could have reused had it computed the calls itself.
evicted   Engine A, alone: the traffic, then prompts of noise until its KV pool holds nothing else,
          then the traffic again. What the second pass reuses comes from host memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from irminsul.demo.engine import Answer, EngineProcess, warm_up
from irminsul.demo.model import TinyModel
from irminsul.demo.prompts import Prompt, encode_calls, first_sessions
from irminsul.tokenizer import load_tokenizer
from irminsul.traces.reader import Call, read_calls
from report import processor, save
from tiers.mooncake_store import Store

VOCABULARY = 129_280
SETTLE_S = 1.5


@contextlib.contextmanager
def engine(model: Path, pool: int, **settings: str) -> Iterator[EngineProcess]:
    """Start an engine whose only irminsul settings are `settings`."""
    for name in [name for name in os.environ if name.startswith("IRMINSUL_")]:
        del os.environ[name]
    os.environ.update({f"IRMINSUL_{name.upper()}": value for name, value in settings.items()})
    with EngineProcess(model, reuse=True, pool_tokens=pool, context_length=pool) as running:
        warm_up(running)
        yield running


def share_pool(
    model: Path, prompts: list[Prompt], pool: int, folder: Path, seconds: float
) -> dict[str, Any]:
    """Return what B reused from the store beside what A reused of its own, for some time."""
    store = Store(folder, 4 << 30)
    tiers = {"host_bytes": str(2 << 30), "pool_master": store.address}
    pairs: list[tuple[Answer, Answer]] = []
    try:
        with (
            engine(model, pool, pool_wait="0", **tiers) as first,
            engine(model, pool, pool_wait="5", **tiers) as second,
        ):
            until = time.monotonic() + seconds
            for prompt in prompts:
                if time.monotonic() > until:
                    break
                second.flush()
                remote = second.ask(prompt.ids)
                local = first.ask(prompt.ids)
                pairs.append((local, remote))
                print(
                    f"turn {prompt.turn}: {len(prompt.ids)} tokens, local {local.cached_tokens}, "
                    f"from the store {remote.cached_tokens}",
                    file=sys.stderr,
                    flush=True,
                )
                store.settled(timeout=15.0)
    finally:
        store.close()
    served = prompts[: len(pairs)]
    return {
        "calls": len(served),
        "sessions": len({prompt.session for prompt in served}),
        "prompt_tokens": sum(len(prompt.ids) for prompt in served),
        "local": sum(local.cached_tokens for local, _ in pairs),
        "remote": sum(remote.cached_tokens for _, remote in pairs),
        "same_token": sum(local.token == remote.token for local, remote in pairs),
        "largest_logit_difference": max(
            float(np.abs(local.logits - remote.logits).max()) for local, remote in pairs
        ),
    }


def evict(model: Path, prompts: list[Prompt], pool: int) -> dict[str, Any]:
    """Return what two passes reuse, with the KV pool emptied by noise in between."""
    random = np.random.default_rng(0)
    passes = []
    with engine(model, pool, host_bytes=str(4 << 30)) as running:
        for number in range(2):
            answers = [running.ask(prompt.ids) for prompt in prompts]
            passes.append(answers)
            if number == 0:
                time.sleep(SETTLE_S)
                # Three halves of the pool: whatever order it evicts in, nothing else is left.
                for _ in range(3):
                    noise = random.integers(1000, 100_000, pool // 2 - 64, dtype=np.uint32)
                    running.ask(noise)
    return {
        "prompt_tokens": sum(len(prompt.ids) for prompt in prompts),
        "first": sum(answer.cached_tokens for answer in passes[0]),
        "second": sum(answer.cached_tokens for answer in passes[1]),
        "second_prefix": sum(answer.prefix_tokens for answer in passes[1]),
    }


def result_row(case: str, value: float, bar: str, facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "bar_id": "tiers.1" if case.startswith("pool") else "tiers.2",
        "case": case,
        "metric": "share of local reuse that the tiers recover",
        "value": round(value, 4),
        "unit": "",
        "rival": "local reuse, tokens",
        "rival_value": facts.get("local", facts.get("first")),
        "bar": bar,
        "samples": facts,
    }


def chosen(arguments: argparse.Namespace) -> list[Call]:
    """Return the calls of the sessions that were asked for."""
    skip = arguments.skip
    every = read_calls(arguments.prompts)
    calls = first_sessions(every, skip + arguments.sessions, arguments.turns)
    left_out = list(dict.fromkeys(call.session for call in calls))[:skip]
    return [call for call in calls if call.session not in left_out]


def command(arguments: argparse.Namespace) -> str:
    """Return what was typed, without folders."""
    words = ["engines.py", f"--prompts {Path(arguments.prompts).name}"]
    for name in ("sessions", "skip", "turns", "pool_tokens", "only"):
        if value := getattr(arguments, name):
            words.append(f"--{name.replace('_', '-')} {value}")
    return " ".join(words)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompts", required=True, help="log of calls")
    parser.add_argument("--sessions", type=int, default=1)
    parser.add_argument("--skip", type=int, default=0, help="sessions to leave out first")
    parser.add_argument("--turns", type=int, help="calls of each session at most")
    parser.add_argument(
        "--seconds",
        type=float,
        default=1e6,
        help="begin no call of B after that, once engines are up",
    )
    parser.add_argument("--pool-tokens", type=int, default=32_768)
    parser.add_argument("--only", choices=("pool", "evicted"))
    parser.add_argument("--bar", default=">= 0.90")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    calls = chosen(arguments)
    pool, name = arguments.pool_tokens, Path(arguments.prompts).name.split(".")[0]
    prompts = list(encode_calls(calls, load_tokenizer(None), VOCABULARY, pool - 1))
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tiny = TinyModel(vocab_size=VOCABULARY, layers=3, heads=2, context_length=pool)
        model = tiny.write(folder / "model")
        if arguments.only != "evicted":
            facts = share_pool(model, prompts, pool, folder, arguments.seconds)
            value = facts["remote"] / max(1, facts["local"])
            rows.append(result_row(f"pool, {name}", value, arguments.bar, facts))
        if arguments.only != "pool":
            facts = evict(model, prompts, pool)
            value = facts["second"] / max(1, facts["first"])
            rows.append(result_row(f"evicted, {name}", value, ">= 0.95", facts))
    save(arguments.out, f"{processor()}, SGLang on the CPU, 3 layers", command(arguments), rows)
    print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
