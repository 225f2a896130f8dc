"""A model folder -> SGLang's attention backends and ours in one run, as result rows.

Decode tokens a second, time to the first token and memory, on random weights; and whether answers
differ by rounding only. Engines start side by side, in groups that fit into the device's memory,
and work one at a time. Decode is counted by the scheduler's own steps, over contexts of noise.

    python benches/serving/backends.py --model FOLDER --out benches/serving/results/backends.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from backend_engine import Engine
from backend_rows import ALONE, CHANGED, HOLES, MOVED, Found, rows_of
from common import sessions, vocabulary
from rows import Row, save

GROUPS = "irminsul,flashinfer,irminsul+irminsul,flashinfer+irminsul;flashmla,triton"
CASES = (
    (128, 4096),
    (64, 4096),
    (16, 4096),
    (1, 4096),
    (16, 16_384),
    (4, 16_384),
    (4, 32_768),
    (1, 32_768),
    (1, 131_072),
)
"""Of one context the largest batch first: the others use its prompts, which are then cached."""
LENGTHS = (1, 5, 63, 64, 65, 130, 700, 3000)


def options_of(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return engine arguments of ``BACKEND[-pagePAGE][+irminsul]``."""
    name, _, cache = name.partition("+")
    backend, _, page = name.partition("-page")
    size = int(page or 64)
    options = {
        "model_path": arguments.model,
        "attention_backend": backend,
        "page_size": size,
        "max_total_tokens": (arguments.tokens // 4 if cache else arguments.tokens) // 64 * 64
        - size,
        "cuda_graph_bs_decode": sorted({1, 4, 16, *(batch for batch, _ in arguments.cases)}),
        "mem_fraction_static": 0.9,
        "log_level": "info",
    }
    if cache:
        options["radix_cache_backend"] = cache
    return options | json.loads(arguments.engine)


def start(names: list[str], arguments: argparse.Namespace) -> list[Engine]:
    """Start engines, a few at the same time; those that do not come up are named and left out."""
    engines: list[Engine] = []
    up = []
    for number, name in enumerate(names):
        if number >= arguments.abreast:
            up += _up(engines[number - arguments.abreast])
        options = options_of(name, arguments) | {"port": 31_000 + 200 * number}
        # Only the cache backend reads these: holes in the prompts of such requests, for `answers`.
        hooks = {"IRMINSUL_TEST_HOLES": "holes", "IRMINSUL_TEST_NO_TREE_MATCH": "holes"}
        hooks |= arguments.environment.get(name, {})
        engines.append(
            Engine(name, options, arguments.many, arguments.logs / f"{name}.log", **hooks)
        )
        time.sleep(arguments.stagger)
    for engine in engines[max(0, len(names) - arguments.abreast) :]:
        up += _up(engine)
    return up


def _up(engine: Engine) -> list[Engine]:
    """Wait for an engine that is starting: itself, or nothing."""
    try:
        print(f"# {engine.name} up in {engine.wait()} s", flush=True)
        return [engine]
    except (RuntimeError, EOFError) as error:
        print(f"# {engine.name}: {error!r}"[:300], flush=True)
        engine.stop()
        return []


Asked = dict[str, tuple[list[dict[str, Any]], bool]]
"""Step -> requests, and whether all come at once."""


def requests(vocabulary_size: int) -> Asked:
    """Return prompts of many lengths, alone, together, on shared prefixes, moved and in holes."""
    random, low = np.random.default_rng(7), min(1000, vocabulary_size // 4)

    def text(count: int) -> list[int]:
        return [int(i) for i in random.integers(low, vocabulary_size - low, count)]

    prompts = [text(length) for length in LENGTHS]
    exact = [{"ids": ids, "tokens": 24, "exact": True} for ids in prompts]
    changed = [{**request, "ids": _changed(request["ids"])} for request in exact]
    branches = [{"ids": prompts[-1][:n] + text(30), "exact": True} for n in (3000, 1000, 100)]
    # Of one text at 90: behind more, and behind less of another one.
    document, rest = text(2000), text(30)
    moved = [
        {"ids": text(head) + document + rest, "rid": f"moved{head}"} for head in (90, 131, 1300, 47)
    ]
    holes = [
        {"ids": prompts[-1], "rid": rid, "exact": False, "tokens": 24}
        for rid in ("whole", "holes1", "holes3", "holes8")
    ]
    return {
        ALONE: (exact, False),
        CHANGED: (changed, False),
        "together": (exact, True),
        "prefixes": (branches, False),
        MOVED: (moved, False),
        HOLES: (holes, False),
        "forty at once, some aborted": (_forty(text, random.integers(5, 3000, 40)), True),
    }


def _forty(text: Callable[[int], list[int]], lengths: Any) -> list[dict[str, Any]]:
    many: list[dict[str, Any]] = [{"ids": text(int(n)), "tokens": 40} for n in lengths]
    for request in many[::7]:
        request["abort"] = 0.15
    return many


def _changed(ids: list[int]) -> list[int]:
    """Return `ids` with one token near the middle exchanged for its neighbour in the vocabulary."""
    at = len(ids) // 2
    return [*ids[:at], ids[at] + 1, *ids[at + 1 :]]


def recorded(path: Path, count: int, calls: int, most: int) -> Asked:
    """Return the first calls of recorded sessions, those of all sessions at once."""
    taken = sessions(path)[:count]
    return {
        f"recorded calls, number {turn + 1}": (
            [
                {"ids": session[turn][:most].tolist(), "tokens": 24, "exact": True}
                for session in taken
                if turn < len(session)
            ],
            True,
        )
        for turn in range(calls)
    }


def measure(
    engines: list[Engine], arguments: argparse.Namespace, found: Found, keep: Callable[[], None]
) -> None:
    """Take all cases of engines that are up; what is timed, on one after the other."""
    for engine in engines:
        found[engine.name] = {name: {} for name in ("rates", "device", "answers", "first", "fill")}
        found[engine.name]["memory"] = engine("memory")
    if arguments.answers:
        steps = requests(vocabulary(arguments.model))
        if arguments.traffic:
            steps |= recorded(arguments.traffic, count=8, calls=3, most=12_000)
        for step, (asked, together) in steps.items():
            _all(engines, found, ("answers", step), "answers", asked, together)
            keep()
    # Those with another cache backend are there for their answers.
    timed = [engine for engine in engines if "+" not in engine.name]
    for case in arguments.cases:
        _all(timed, found, ("fill", case), "fill", *case)
        for _ in range(arguments.rounds):
            for engine in timed:
                taken = found[engine.name]["rates"].setdefault(case, [])
                if case in found[engine.name]["fill"]:
                    _rate(engine, case, taken, found)
        print(f"{case[0]} x {case[1]}: {_line(timed, found, case)}", flush=True)
        keep()
    for context in arguments.contexts:
        for engine in timed:
            _all([engine], found, ("first", context), "first_token", context, arguments.rounds)
        keep()


def _rate(engine: Engine, case: tuple[int, int], taken: list[float], found: Found) -> None:
    try:
        rate, device = engine("rate", case[0])
    except RuntimeError as error:
        print(f"# {engine.name} {case}: {error}"[:300], flush=True)
        return
    taken.append(rate)
    if device is not None:
        found[engine.name]["device"].setdefault(case, []).append(device)


def _all(
    engines: list[Engine], found: Found, place: tuple[str, Any], method: str, *rest: Any
) -> None:
    """Ask engines at the same time and keep their answers, or name what went wrong and go on."""
    for engine in engines:
        engine.ask(method, *rest)
    for engine in engines:
        try:
            found[engine.name][place[0]][place[1]] = engine.wait()
        except RuntimeError as error:
            print(f"# {engine.name} {place}: {error}"[:300], flush=True)


def _line(engines: list[Engine], found: Found, case: tuple[int, int]) -> str:
    rates = {engine.name: found[engine.name]["rates"].get(case) for engine in engines}
    return ", ".join(f"{name} {statistics.median(r):.1f}" for name, r in rates.items() if r)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="folder with a config.json; random weights")
    parser.add_argument("--out", type=Path, help="results file to write")
    parser.add_argument("--logs", type=Path, default=Path(), help="folder for the engines' logs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--groups", default=GROUPS, help="of BACKEND[-pageN][+irminsul]")
    parser.add_argument("--cases", type=json.loads, default=[list(case) for case in CASES])
    parser.add_argument("--contexts", type=json.loads, default=[4096, 32_768])
    parser.add_argument("--tokens", type=int, default=620_032, help="rows of the pool")
    parser.add_argument("--many", type=int, default=136, help="tokens of the longer runs")
    parser.add_argument("--answers", action="store_true", help="compare answers too")
    parser.add_argument("--traffic", type=Path, help="recorded calls of pack.py, for answers")
    parser.add_argument("--environment", type=json.loads, default={}, help="engine: variables")
    parser.add_argument("--stagger", type=float, default=1.0, help="seconds between starts")
    parser.add_argument("--abreast", type=int, default=3, help="engines that start at a time")
    parser.add_argument("--engine", default="{}", help="engine arguments as JSON")
    arguments = parser.parse_args()
    arguments.cases = [(batch, context) for batch, context in arguments.cases]
    return arguments


def main() -> int:
    arguments = parsed()
    found: Found = {}
    rows: list[Row] = []
    arguments.logs.mkdir(parents=True, exist_ok=True)

    def keep() -> None:
        cases = list(dict.fromkeys(arguments.cases))  # a case may be asked for again, for samples
        rows[:] = rows_of(found, cases, arguments.contexts, arguments.tokens)
        if arguments.out:
            save(arguments.out, rows)

    for group in arguments.groups.split(";"):
        began = time.perf_counter()
        engines = start(group.split(","), arguments)
        try:
            measure(engines, arguments, found, keep)
        finally:
            for engine in engines:
                engine.stop()
        print(f"# {group}: {time.perf_counter() - began:.1f} s", flush=True)
    for each in rows:
        counts = each.get("counts", "")
        print(each["bar_id"], each["case"], each["value"], each["rival_value"] or "", counts)
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
