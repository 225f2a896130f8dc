"""Figures of each turn -> a table, a summary in plain words, and one JSON object.

Must not know how they were measured.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from irminsul.demo.measure import Summary, Turn

__all__ = ["as_json", "print_table", "summary_text"]

_COLUMNS = (
    ("turn", "turn"),
    ("prompt", "prompt\ntokens"),
    ("prefix", "exact\nprefix"),
    ("reused", "reused\nshifted"),
    ("computed", "computed"),
    ("plain", "first token\nwithout (s)"),
    ("ttft", "first token\nwith (s)"),
    ("speedup", "speed-up"),
    ("logits", "largest logit\ndifference"),
    ("same", "same\ntoken"),
)


def print_table(turns: Sequence[Turn]) -> None:
    """Print the table of `turns` on standard output."""
    from rich.console import Console
    from rich.table import Table

    many = len({turn.session for turn in turns}) > 1
    table = Table(title="One agent conversation, turn by turn", title_justify="left")
    if many:
        table.title = "Agent conversations, turn by turn"
        table.add_column("session", no_wrap=True)
    for _, heading in _COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    for turn in turns:
        cells = _cells(turn)
        table.add_row(*([turn.session] if many else []), *(cells[key] for key, _ in _COLUMNS))
    # A pipe has no width of its own; the table must not be folded there.
    width = None if sys.stdout.isatty() else 140
    Console(width=width).print(table)


def _cells(turn: Turn) -> dict[str, str]:
    return {
        "turn": str(turn.turn + 1),
        "prompt": f"{turn.prompt_tokens:,}",
        "prefix": f"{turn.prefix_tokens:,}",
        "reused": f"{turn.reused_tokens:,}",
        "computed": f"{turn.computed_tokens:,}",
        "plain": f"{turn.plain_ttft_s:.2f}",
        "ttft": f"{turn.ttft_s:.2f}",
        "speedup": f"{turn.speedup:.1f}x",
        "logits": f"{turn.logits_difference:.3f}",
        "same": "yes" if turn.same_token else "no",
    }


def summary_text(summary: Summary | None) -> str:
    """Return the result in a few sentences."""
    if summary is None:
        return "Only first calls were sent: there was nothing to reuse yet."
    faster = summary.turns - summary.slower_turns
    sooner = summary.speedup >= 1
    ratio = summary.speedup if sooner else 1 / summary.speedup
    times = f"{ratio:.1f} times {'sooner' if sooner else 'later'}"
    return (
        f"After the first call, {summary.reused_share:.1%} of the prompt tokens were reused at a "
        f"shifted position, {summary.prefix_share:.1%} were an exact prefix and "
        f"{summary.computed_share:.1%} were computed. The first token came "
        f"{times} (median {summary.ttft_s:.2f} s with irminsul, "
        f"{summary.plain_ttft_s:.2f} s without), sooner on {faster} of {summary.turns} calls. "
        f"The first token's logits differ by {summary.logits_difference:.2f} at most (their "
        f"standard deviation is {summary.logits_spread:.2f}), and both sides chose the same token "
        f"on {summary.same_tokens} of {summary.turns} calls; the model's weights are random, so "
        "this says nothing about the quality of answers."
    )


def as_json(
    turns: Sequence[Turn], summary: Summary | None, settings: dict[str, Any]
) -> dict[str, Any]:
    """Return everything as one JSON object; times are seconds, lengths are tokens."""
    return {
        "machine": {
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            **{name: _version(name) for name in ("sglang", "torch", "irminsul-kv")},
        },
        "settings": settings,
        "turns": [asdict(turn) | {"speedup": turn.speedup} for turn in turns],
        "summary": asdict(summary) if summary else None,
    }


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
