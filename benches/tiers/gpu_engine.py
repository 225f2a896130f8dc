"""One SGLang engine on a GPU with a host tier -> what comes back after its KV pool was emptied.

    python benches/tiers/gpu_engine.py --model FOLDER --out benches/tiers/results/gpu_engine.json

Random prompts of one length, weights that are not loaded (only their shapes matter). Each prompt is
served cold, again as a prefix hit, and once more after noise has filled the pool: then its rows
come from host memory, at the positions they were computed at. With `--store`, the engine also has a
Mooncake Store on loopback: everything else is emptied, and each prompt is served once more behind a
head of its own, from what the store has of it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from report import save

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))


def serve(engine: Any, prompts: list[Any]) -> list[dict[str, Any]]:
    found = []
    for ids in prompts:
        began = time.perf_counter()
        answer = engine.generate(
            input_ids=ids.tolist(), sampling_params={"max_new_tokens": 2, "temperature": 0.0}
        )
        found.append(
            {
                "seconds": time.perf_counter() - began,
                "tokens": answer["output_ids"],
                "cached": answer["meta_info"]["cached_tokens"],
            }
        )
    return found


def flat(name: str, answers: list[dict[str, Any]]) -> dict[str, Any]:
    seconds = [answer["seconds"] for answer in answers]
    print(name, [round(1e3 * s, 1) for s in seconds], [a["cached"] for a in answers], flush=True)
    return {
        "milliseconds": round(1e3 * statistics.median(seconds), 1),
        "cached": sum(answer["cached"] for answer in answers),
    }


def measure(engine: Any, length: int, prompts: int, pool: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(length)
    made = [random.integers(1000, 100_000, length) for _ in range(prompts)]
    noise = [random.integers(1000, 100_000, pool // 4) for _ in range(7)]
    # Everything once before, so that no kernel is built in what is timed.
    serve(engine, [random.integers(1000, 100_000, length), noise[0]])
    cold, hit = serve(engine, made), serve(engine, made)
    time.sleep(1.0)  # written behind
    serve(engine, noise)
    host = serve(engine, made)
    facts = {name: flat(name, a) for name, a in (("cold", cold), ("hit", hit), ("host", host))}
    facts["same_tokens_as_hit"] = sum(
        a["tokens"] == b["tokens"] for a, b in zip(hit, host, strict=True)
    )
    share = facts["host"]["cached"] / facts["hit"]["cached"]
    return [
        row(
            f"evicted, {prompts} prompts of {length} tokens", round(share, 4), "", ">= 0.95", facts
        ),
        row(
            f"time of an answer from host memory, {length} tokens",
            round(facts["host"]["milliseconds"] / facts["cold"]["milliseconds"], 4),
            "of cold",
            None,
            facts,
        ),
    ]


def from_store(engine: Any, length: int, prompts: int, store: Any) -> list[dict[str, Any]]:
    random = np.random.default_rng(length + 1)
    made = [random.integers(1000, 100_000, length) for _ in range(prompts)]
    heads = [random.integers(1000, 100_000, 40 + number) for number in range(2 * prompts)]
    cold = serve(engine, made)
    store.settled()
    rounds = []
    # Twice: the first time nothing is known of the link.
    for part in (heads[:prompts], heads[prompts:]):
        engine.flush_cache()
        moved = [np.concatenate([head, ids]) for head, ids in zip(part, made, strict=True)]
        rounds.append(serve(engine, moved))
        store.settled()
    facts = {
        "cold": flat("cold", cold),
        "first": flat("store, first", rounds[0]),
        "store": flat("store", rounds[1]),
        "prompt_tokens": sum(len(ids) for ids in made),
    }
    seconds, share = facts["store"]["milliseconds"], facts["store"]["cached"]
    case = f"{prompts} prompts of {length} tokens behind new heads, from a store on loopback"
    found = row(
        f"time of an answer, {case}",
        round(seconds / facts["cold"]["milliseconds"], 4),
        "of cold",
        None,
        facts,
    )
    given = found | {
        "case": f"GPU engine, {case}",
        "metric": "share of the prompt that the store gives",
        "value": round(share / facts["prompt_tokens"], 4),
        "unit": "",
        "rival": "the whole prompt, tokens",
        "rival_value": facts["prompt_tokens"],
    }
    return [given, found]


def row(case: str, value: float, unit: str, bar: str, facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "bar_id": "tiers.2",
        "case": f"GPU engine, {case}",
        "metric": "share of prefix hits that host memory gives back" if not unit else "time",
        "value": value,
        "unit": unit,
        "rival": "the same prompts as prefix hits, tokens" if not unit else "cold, ms",
        "rival_value": facts["hit"]["cached"] if not unit else facts["cold"]["milliseconds"],
        "bar": bar,
        "samples": facts,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 16384])
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--pool", type=int, default=80_000)
    parser.add_argument("--host-bytes", type=int, default=12 << 30)
    parser.add_argument("--store-bytes", type=int, default=12 << 30)
    parser.add_argument("--options", default="{}", help="more arguments of sglang.Engine, JSON")
    parser.add_argument("--store", action="store_true", help="with a Mooncake Store on loopback")
    arguments = parser.parse_args()
    os.environ["IRMINSUL_HOST_BYTES"] = str(arguments.host_bytes)
    with tempfile.TemporaryDirectory() as folder:
        store = None
        if arguments.store:
            from tiers.mooncake_store import Store

            store = Store(Path(folder), arguments.store_bytes)
            os.environ["IRMINSUL_POOL_MASTER"] = store.address
        try:
            run(arguments, store)
        finally:
            if store is not None:
                store.close()


def run(arguments: argparse.Namespace, store: Any) -> None:
    import sglang

    began = time.perf_counter()
    engine = sglang.Engine(
        model_path=arguments.model,
        load_format="dummy",
        skip_tokenizer_init=True,
        grammar_backend="none",
        random_seed=0,
        radix_cache_backend="irminsul",
        max_total_tokens=arguments.pool,
        **json.loads(arguments.options),
    )
    print(f"engine up after {time.perf_counter() - began:.1f} s", flush=True)
    rows: list[dict[str, Any]] = []
    machine = "one GPU, SGLang, weights not loaded"
    for length in arguments.lengths:
        rows += measure(engine, length, arguments.prompts, arguments.pool)
        save(arguments.out, machine, "gpu_engine.py", rows)
        if store is not None:
            rows += from_store(engine, length, arguments.prompts, store)
            save(arguments.out, machine, "gpu_engine.py --store", rows)
    engine.shutdown()


if __name__ == "__main__":
    main()
