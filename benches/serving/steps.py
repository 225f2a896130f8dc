"""A pair of engines -> the rows of one question: first tokens, energy, plain or recorded traffic.

Each step takes a `Bench` and returns its rows; `run.py` gives it time and writes the file.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from common import Bench, Clock, Ids, Load, Prompts, energy_counter, interleaved
from forms import forms
from relinked import relinked
from rows import Row, ratio_row, row

COLD, MOVED = 4, 30  # requests of one reading of the energy counter
SHARES = (10, 30, 50, 70)  # per cent of a prompt that is moved, over eight holes


def first_token(bench: Bench) -> list[Row]:
    """Bars 1 and 2: moved text against cold and against equally long exact prefix hits."""
    n, prompts = bench.length, bench.prompts()
    most, part = n - 150, round(0.83 * n)
    cases: dict[str, Any] = {
        "prefix": lambda cold: (prompts.prefix(cold, most), {}),
        "two_holes": lambda cold: (prompts.holes(cold, 2, most), {}),
        "nine_holes": lambda cold: (prompts.holes(cold, 9, most), {}),
        "prefix_83": lambda cold: (prompts.prefix(cold, part), {}),
        "eight_holes_83": lambda cold: (prompts.holes(cold, 8, part), {}),
    }
    bars = (
        (1, "two_holes", "prefix", "<= 1.10"),
        (1, "two_holes", "cold", "<= 0.125"),
        (1, "nine_holes", "prefix", "<= 1.50"),
        (1, "prefix", "cold", ""),
        (2, "eight_holes_83", "prefix_83", "<= 1.25"),
    )
    return _compared(bench, prompts, cases, bars)


def reuse(bench: Bench) -> list[Row]:
    """Bar 2: some of a prompt moved, over eight holes, against computing all of it."""
    prompts = bench.prompts()
    cases = {
        f"reuse_{share}": lambda cold, moved=bench.length * share // 100: (
            prompts.holes(cold, 8, moved),
            {},
        )
        for share in SHARES
    }
    bars = [(2, f"reuse_{share}", "cold", "<= 1.02" if share < 30 else "< 1") for share in SHARES]
    return _compared(bench, prompts, cases, bars)


def _compared(bench: Bench, prompts: Prompts, cases: dict[str, Any], bars: Any) -> list[Row]:
    """Take all cases in turn and return one row per bar: number, case, rival, what is asked."""
    server = bench.server("irminsul")
    # The first seconds of an engine compile kernels and run at half speed.
    interleaved(server, prompts, cases, 2 if server.warm else 6, Clock(1e9))
    server.warm = True
    taken = interleaved(server, prompts, cases, bench.samples, bench.clock)
    first = {name: [reply.first for reply in replies] for name, replies in taken.items()}
    rows = []
    for number, case, rival, bar in bars:
        made = ratio_row(f"sglang.{number}", case, first[case], rival, first[rival], bar)
        cached = int(statistics.median(reply.cached for reply in taken[case]))
        rows.append({**made, "cached_tokens": cached, "prompt_tokens": bench.length})
    return rows


def energy(bench: Bench) -> list[Row]:
    """Bar 3: joules per request by the GPU's total energy counter, idle power included."""
    prompts, server, counter = bench.prompts(), bench.server("irminsul"), energy_counter()
    most = bench.length - 150

    def spent(requests: list[Ids]) -> float:
        time.sleep(0.5)  # the counter lags behind by its steps of some 100 ms
        before = counter()
        for ids in requests:
            server.serve(ids)
        time.sleep(0.1)
        return (counter() - before) / len(requests)

    def group(cold: int, moved: int) -> dict[str, float]:
        server.flush()
        joules = {"cold": spent([prompts.fresh(bench.length) for _ in range(cold)])}
        server.flush()
        text = prompts.fresh(bench.length)
        server.serve(text)
        # One text only: what is used stays in the pool however many copies of it come after.
        joules["two_holes"] = spent([prompts.holes(text, 2, most) for _ in range(moved)])
        joules["prefix"] = spent([prompts.prefix(text, most) for _ in range(moved)])
        return joules

    group(1, 2)  # the first of each kind compiles kernels
    groups: list[dict[str, float]] = []
    while len(groups) < 6 and bench.clock.goes_on(len(groups), 2):
        groups.append(group(COLD, MOVED))
        read = ", ".join(f"{case} {joules:.2f} J" for case, joules in groups[-1].items())
        print(f"# {read}", flush=True)
    return [_energy_row(groups)]


def _energy_row(groups: list[dict[str, float]]) -> Row:
    ratios = sorted(joules["two_holes"] / joules["cold"] for joules in groups)
    return row(
        "sglang.3",
        "two_holes",
        "energy per request, ratio to cold",
        round(statistics.median(ratios), 4),
        "1",
        rival="cold",
        rival_value=1.0,
        bar="<= 0.10",
        samples=len(ratios),
        requests={"cold": COLD * len(ratios), "two_holes": MOVED * len(ratios)},
        spread=[round(ratios[0], 4), round(ratios[-1], 4)],
        joules={
            case: round(statistics.median(joules[case] for joules in groups), 2)
            for case in groups[0]
        },
    )


def plain(bench: Bench) -> list[Row]:
    """Bar 4: traffic that shares nothing, on SGLang as it is and with irminsul, in turn."""
    sides = [bench.server("stock"), bench.server("irminsul")]
    first: dict[str, list[float]] = {"stock": [], "irminsul": []}
    rate: dict[str, list[float]] = {"stock": [], "irminsul": []}
    equal, cached = [], 0
    prompts, burst = bench.prompts(4096), bench.prompts(1024)
    for turn in itertools.count():
        if turn >= bench.samples + 2 or not bench.clock.goes_on(turn, 5):
            break
        alone = [prompts.fresh(prompts.length) for _ in range(4)]
        several = [[burst.fresh(burst.length)] for _ in range(16)]
        answers: dict[str, list[list[int]]] = {"stock": [], "irminsul": []}
        taken: dict[str, list[float]] = {"stock": [], "irminsul": []}
        for number, ids in enumerate(alone):
            for side in sides if (turn + number) % 2 else sides[::-1]:
                reply = side.serve(ids)
                answers[side.backend].append(reply.tokens)
                taken[side.backend].append(reply.first)
                cached += reply.cached
        for side in sides if turn % 2 else sides[::-1]:
            load = side.closed_loop(several, clients=16, tokens=32)
            answers[side.backend] += sorted(reply.tokens for reply in load.replies)
            cached += sum(reply.cached for reply in load.replies)
            if turn >= 2:  # the first two warm up
                first[side.backend] += taken[side.backend]
                rate[side.backend].append(load.seconds)
        equal.append(answers["stock"] == answers["irminsul"])
    return _plain_rows(first, rate, equal, cached)


def _plain_rows(
    first: dict[str, list[float]], rate: dict[str, list[float]], equal: list[bool], cached: int
) -> list[Row]:
    counted = (("answers that differ", equal.count(False)), ("reused tokens", cached))
    return [
        ratio_row("sglang.4", "alone_4096", first["irminsul"], "stock", first["stock"], "<= 1.01"),
        {
            **ratio_row(
                "sglang.4", "16_x_1024", rate["irminsul"], "stock", rate["stock"], "<= 1.01"
            ),
            "metric": "time for 16 requests of 32 tokens, ratio to stock",
        },
        *(
            row("sglang.4", "no overlap", metric, value, "1", bar="== 0", samples=len(equal))
            for metric, value in counted
        ),
    ]


def recorded(bench: Bench) -> list[Row]:
    """Bar 5: recorded agent calls, eight sessions at a time, 32 tokens each, three repeats."""
    sides = {name: bench.server(name) for name in ("stock", "irminsul")}
    loads: dict[str, list[Load]] = {name: [] for name in sides}
    for name in sides:  # warm up
        sides[name].closed_loop([session[:2] for session in bench.sessions[:8]], 8, 32)
    for repeat in range(3):
        if not bench.clock.goes_on(repeat, 1):
            break
        for name in sorted(sides, reverse=bool(repeat % 2)):
            sides[name].flush()
            load = sides[name].closed_loop(bench.sessions, clients=8, tokens=32, busy=True)
            loads[name].append(load)

    return _recorded_rows(loads)


def _recorded_rows(loads: dict[str, list[Load]]) -> list[Row]:
    def mean(load: Load) -> float:
        return statistics.fmean(reply.first for reply in load.replies)

    pairs = list(zip(loads["stock"], loads["irminsul"], strict=True))
    sooner = [mean(stock) / mean(mine) for stock, mine in pairs]
    faster = [_rate(mine) / _rate(stock) for stock, mine in pairs]
    made = [
        row(
            "sglang.5",
            "early variation",
            metric,
            round(statistics.median(ratios), 3),
            "1",
            rival="stock",
            rival_value=1.0,
            bar=bar,
            samples=len(pairs),
            spread=[round(min(ratios), 3), round(max(ratios), 3)],
        )
        for metric, ratios, bar in (
            ("mean time to first token of stock over irminsul's", sooner, ">= 4"),
            ("requests per second, irminsul over stock", faster, ">= 2"),
        )
    ]
    made[0] |= {name: _summary(sides_loads) for name, sides_loads in loads.items()}
    return made


def _rate(load: Load) -> float:
    return len(load.replies) / load.seconds


def _summary(loads: list[Load]) -> dict[str, float]:
    replies = [reply for load in loads for reply in load.replies]
    first = np.array([reply.first for reply in replies]) * 1e3
    return {
        "calls": len(replies),
        "mean_ms": round(float(first.mean()), 1),
        "p50_ms": round(float(np.percentile(first, 50)), 1),
        "p95_ms": round(float(np.percentile(first, 95)), 1),
        "p99_ms": round(float(np.percentile(first, 99)), 1),
        "requests_per_second": round(len(replies) / sum(load.seconds for load in loads), 2),
        "cached_share": round(
            sum(reply.cached for reply in replies) / sum(reply.prompt for reply in replies), 4
        ),
        "prompt_tokens": sum(reply.prompt for reply in replies),
    }


STEPS: dict[str, Callable[[Bench], list[Row]]] = {
    "first_token": first_token,
    "reuse": reuse,
    "energy": energy,
    "plain": plain,
    "recorded": recorded,
    "forms": forms,
    "relinked": relinked,
}
