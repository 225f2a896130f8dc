"""A report -> figures.

Must not know files or HTML. Needs the package ``matplotlib``; draws without a display.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from irminsul.errors import MissingExtra

try:
    from matplotlib import rc_context
    from matplotlib.figure import Figure
except ImportError as error:
    raise MissingExtra("figures need: pip install 'irminsul-kv[cli]'") from error

__all__ = ["draw"]

PREFIX, SHIFTED, COMPUTED = "#b9c3cc", "#2a78b5", "#eceff1"
STYLE: Any = {"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "irminsul"}


def draw(report: dict[str, Any]) -> Iterator[tuple[str, str, Figure]]:
    """Yield ``(name, caption, figure)`` for each figure of a report.

    Parameters
    ----------
    report : dict
        From `irminsul.traces.report.as_json`.
    """
    with rc_context(STYLE):
        yield "reuse", "Where the prompt tokens of each log come from.", _shares(report["files"])
        for number, file in enumerate(report["files"], start=1):
            name = file["file"]
            if len(file["turns"]) > 1:
                caption = f"{name}: share of prompt tokens served, turn by turn."
                yield f"turns-{number}", caption, _turns(file["turns"])
            if file["causes"]:
                caption = f"{name}: tokens lost to broken prefixes, by cause."
                yield f"causes-{number}", caption, _causes(file["causes"])


def _figure(height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(7.2, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _shares(files: list[dict[str, Any]]) -> Figure:
    figure, axes = _figure(1.3 + 0.35 * len(files))
    rows = [file["total"] for file in files]
    prefix = [row["prefix_percent"] for row in rows]
    shifted = [row["irminsul_percent"] - row["prefix_percent"] for row in rows]
    computed = [100 - row["irminsul_percent"] for row in rows]
    left = [0.0] * len(rows)
    for label, color, widths in (
        ("exact prefix", PREFIX, prefix),
        ("reused at another position", SHIFTED, shifted),
        ("computed", COMPUTED, computed),
    ):
        axes.barh(range(len(rows)), widths, left=left, color=color, label=label)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    bounds = [row["upper_bound_percent"] for row in rows]
    axes.plot(bounds, range(len(rows)), "k|", markersize=10, label="upper bound")
    axes.set_yticks(range(len(rows)), [_plain(file["file"]) for file in files])
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of prompt tokens")
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    return figure


def _turns(turns: list[dict[str, Any]]) -> Figure:
    figure, axes = _figure(2.6)
    numbers = [row["turn"] for row in turns]
    served = [row["irminsul_percent"] for row in turns]
    axes.fill_between(numbers, served, color=SHIFTED, step="mid", label="irminsul adds")
    prefix = [row["prefix_percent"] for row in turns]
    axes.fill_between(numbers, prefix, color=PREFIX, step="mid", label="exact prefix")
    axes.set_xlim(numbers[0], numbers[-1])
    axes.set_ylim(0, 100)
    axes.set_xlabel("turn")
    axes.set_ylabel("% of prompt tokens")
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def _causes(causes: list[dict[str, Any]]) -> Figure:
    figure, axes = _figure(0.9 + 0.3 * len(causes))
    lost = [row["lost_tokens"] / 1000 for row in causes]
    axes.barh(range(len(causes)), lost, color=SHIFTED)
    axes.set_yticks(range(len(causes)), [row["cause"] for row in causes])
    axes.invert_yaxis()
    axes.set_xlabel("thousand tokens lost")
    return figure


def _plain(text: str) -> str:
    # matplotlib reads $...$ as mathematics.
    return text.replace("$", r"\$")
