"""What engines with different attention backends answered, and how fast -> result rows.

Knows names like ``irminsul-page1+irminsul``: backend, page, cache backend. Must not know an engine.
"""

from __future__ import annotations

import statistics
from typing import Any

from agreement import by_rounding, summary
from rows import Row, row

OURS = "irminsul"
MOVED, HOLES = "moved", "holes at delta 0"
ALONE, CHANGED = "alone", "one token of the prompt changed"
SENSITIVE = "backend.answers-sensitive"
USUAL_NOISE = 0.02
"""A logprob's difference in bf16 where no second stock backend has run to say."""

Found = dict[str, dict[str, Any]]


def rows_of(
    found: Found, cases: list[tuple[int, int]], contexts: list[int], tokens: int
) -> list[Row]:
    """Return all rows of what has been found so far."""
    return [
        *decode_rows(found, cases),
        *first_token_rows(found),
        *memory_rows(found, contexts, tokens),
        *answer_rows(found),
    ]


def decode_rows(found: Found, cases: list[tuple[int, int]]) -> list[Row]:
    """Our rate beside the best of the others."""
    rows = []
    for case in cases:
        rates = {name: result["rates"].get(case) for name, result in found.items()}
        medians = {name: statistics.median(values) for name, values in rates.items() if values}
        rivals = {n: v for n, v in medians.items() if not n.startswith(OURS)}
        if not rivals:
            continue
        best = max(rivals, key=lambda name: rivals[name])
        for name in (n for n in medians if n.startswith(OURS)):
            rows.append(
                row(
                    "backend.1",
                    f"batch {case[0]}, context {case[1]}, {name}",
                    "decode throughput",
                    round(medians[name], 1),
                    "tokens/s",
                    rival=f"{best}, the best of {', '.join(rivals)}",
                    rival_value=round(rivals[best], 1),
                    bar=">= the rival, within spread",
                    samples=[round(rate, 1) for rate in rates[name] or []],
                    rival_samples=[round(rate, 1) for rate in rates[best] or []],
                    others={n: round(v, 1) for n, v in rivals.items()},
                    device_ms=_device(found[name], case),
                    rival_device_ms=_device(found[best], case),
                )
            )
    return rows


def _device(result: dict[str, Any], case: tuple[int, int]) -> float | None:
    """Return how long the device takes for a step, in ms; the rest of its time is the host's."""
    taken = result["device"].get(case)
    return round(statistics.median(taken), 3) if taken else None


def first_token_rows(found: Found) -> list[Row]:
    """Seconds to a cold and to a cached prompt's first token."""
    rows = []
    for name, result in found.items():
        for context, seconds in result["first"].items():
            for kind, value in seconds.items():
                case = f"{context} tokens, {kind}, {name}"
                rows.append(
                    row("backend.ttft", case, "time to first token", round(value * 1e3, 2), "ms")
                )
    return rows


def memory_rows(found: Found, contexts: list[int], tokens: int) -> list[Row]:
    """Bytes of the KV pool that a session takes, and what the engine holds besides."""
    rows = []
    for name, result in found.items():
        memory = result["memory"]
        capacity = memory.get("token_capacity") or tokens
        a_token = memory.get("kvcache", 0.0) * 2**30 / capacity
        for context in contexts:
            case = f"{context} tokens, {name}"
            value = round(a_token * context)
            rows.append(row("backend.memory", case, "KV bytes of a session", value, "bytes"))
        graphs = memory.get("graph", 0.0)
        rows.append(row("backend.memory", name, "CUDA graphs", graphs, "GB", engine=memory))
    return rows


def answer_rows(found: Found) -> list[Row]:
    """Answers of ours against a stock backend's, with what two stock backends differ by."""
    rows = []
    for name, result in found.items():
        # Of two caches that move text both see the same rows; one that does not computes them.
        stock = [
            n for n in found if not n.startswith(OURS) and _moves(n) == _moves(name) and n != name
        ]
        for step, ours in result["answers"].items():
            rivals = [n for n in stock if step in found[n]["answers"]]
            if rivals and (name.startswith(OURS) or name > rivals[0]):
                theirs = found[rivals[0]]["answers"][step]
                usual = max([USUAL_NOISE, *_usual(found, step)])
                rows.append(_answer_row(name, step, summary(ours, theirs), rivals[0], usual))
        if CHANGED in result["answers"]:
            rows.append(_sensitive_row(name, result["answers"]))
        if HOLES in result["answers"] and _moves(name):
            whole, *holed = result["answers"][HOLES]
            counts = summary(holed, [whole] * len(holed))
            rows.append(_answer_row(name, HOLES, counts, "its own full prefill", USUAL_NOISE))
    return rows


def _sensitive_row(name: str, answers: dict[str, Any]) -> Row:
    """Say whether these answers would show it if attention read something else."""
    counts = summary(answers[CHANGED], answers[ALONE])
    return row(
        SENSITIVE,
        name,
        "answers that change with one token of the prompt",
        counts["answers"] - counts["equal"],
        "",
        bar=f">= {counts['answers'] - 1}",
        counts=counts,
    )


def _moves(name: str) -> bool:
    return name.endswith("+irminsul")


def _answer_row(name: str, step: str, counts: dict[str, Any], rival: str, usual: float) -> Row:
    ours = name.startswith(OURS)
    return row(
        "backend.answers" if ours else "backend.answers-stock",
        f"{step}, {name}",
        "answers that differ by more than rounding",
        int(not by_rounding(counts, usual)),
        "",
        rival=rival,
        bar="== 0" if ours else None,
        counts=counts,
        usual_noise=usual,
    )


def _usual(found: Found, step: str) -> list[float]:
    """Return how far stock backends are from the first of their kind, with a cache and without."""
    answered = [n for n in found if not n.startswith(OURS) and step in found[n]["answers"]]
    noise = []
    for moves in (False, True):
        first, *others = [n for n in answered if _moves(n) == moves] or [""]
        answers = [found[name]["answers"][step] for name in others]
        noise += [summary(other, found[first]["answers"][step])["noise"] for other in answers]
    return noise
