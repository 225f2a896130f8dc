"""One engine -> what its prefill costs, part by part: the cost model's figures. No bar.

The rates in ``irminsul.integrations.sglang.admission.costs`` come from here.
"""

from __future__ import annotations

import itertools
import statistics
from typing import Any

from common import Bench, Clock, Reply, Server, interleaved
from rows import Row, row

SHORT = (512, 1024, 2048, 4096)  # prompt lengths at which moving may not pay


def forms(bench: Bench) -> list[Row]:
    """What the cost model is made of: both forms of attention, rows, short prompts. No bar."""
    server, n, prompts = bench.server("irminsul"), bench.length, bench.prompts()
    cases: dict[str, Any] = {}
    for count, length in itertools.product((2, 8), (64, 256, 512, 1024, 2048)):
        if count * length <= 8000:
            for form in ("absorb", "mha"):
                cases[f"{form} {count} holes of {length}"] = (
                    lambda cold, c=count, q=length, f=form: (
                        prompts.holes(cold, c, n - c * q),
                        {"rid": f},
                    )
                )
    for count in (2, 9, 17, 33, 65, 129):
        cases[f"absorb {count} holes of 2600 tokens"] = lambda cold, c=count: (
            prompts.holes(cold, c, n - 2600),
            {"rid": "absorb"},
        )
    interleaved(server, prompts, cases, 1, Clock(1e9))
    taken = interleaved(server, prompts, cases, 8, bench.clock)
    rows = [_median_row(case, replies, n) for case, replies in taken.items()]
    for length in SHORT:
        rows += _short(bench, server, length)
    return rows


def _short(bench: Bench, server: Server, length: int) -> list[Row]:
    """A short prompt, computed and with half or most of it moved: what moving costs at least."""
    prompts = bench.prompts(length)
    cases: dict[str, Any] = {
        f"absorb {length}, {share} moved": lambda cold, r=length * share // 100: (
            prompts.holes(cold, 2, r),
            {"rid": "absorb"},
        )
        for share in (25, 50, 90)
    }
    taken = interleaved(server, prompts, cases, 10, Clock(20.0))
    return [_median_row(f"{case} {length}", replies, length) for case, replies in taken.items()]


def _median_row(case: str, replies: list[Reply], length: int) -> Row:
    first = sorted(reply.first * 1e3 for reply in replies)
    return row(
        "sglang.costs",
        case,
        "time to first token",
        round(statistics.median(first), 3),
        "ms",
        samples=len(first),
        spread=[round(first[0], 3), round(first[-1], 3)],
        cached_tokens=int(statistics.median(reply.cached for reply in replies)),
        prompt_tokens=length,
    )
