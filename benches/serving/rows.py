"""Values and samples -> result rows, the one file of a run, and lines to read.

Must not know engines. Every comparison is made of pairs taken in turn, so that drift of the machine
falls on both sides alike; a row states the median of the pairwise ratios.
"""

from __future__ import annotations

import platform
import shlex
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from results_file import filled, text

Row = dict[str, Any]


def row(bar_id: str, case: str, metric: str, value: float, unit: str, **more: Any) -> Row:
    """Return a result row with all its fields."""
    fields: Row = {"bar_id": bar_id, "case": case, "metric": metric, "value": value, "unit": unit}
    return fields | {"rival": None, "rival_value": None, "bar": None, "samples": None} | more


def ratio_row(
    bar_id: str, case: str, mine: Sequence[float], rival: str, other: Sequence[float], bar: str
) -> Row:
    """Return the median of the pairwise ratios, where it lies at 95 %, and how far they spread.

    The interval is that of order statistics, which supposes nothing of how ratios are distributed.
    """
    ratios = sorted(a / b for a, b in zip(mine, other, strict=True))
    off = round(0.98 * len(ratios) ** 0.5)
    low, high = max(0, len(ratios) // 2 - off), min(len(ratios) - 1, len(ratios) // 2 + off)
    value, metric = statistics.median(ratios), f"time to first token, ratio to {rival}"
    return row(
        bar_id,
        case,
        metric,
        round(value, 4),
        "1",
        rival=rival,
        rival_value=1.0,
        bar=bar or None,
        samples=len(ratios),
        interval=[round(ratios[low], 4), round(ratios[high], 4)],
        spread=[round(ratios[len(ratios) // 10], 4), round(ratios[-1 - len(ratios) // 10], 4)],
        median_ms=round(statistics.median(mine) * 1e3, 2),
        rival_median_ms=round(statistics.median(other) * 1e3, 2),
    )


def machine() -> str:
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor()
    return f"{name}, torch {torch.__version__}, Python {platform.python_version()}"


def save(out: Path, rows: Sequence[Row], **more: Any) -> None:
    """Write `rows`, with the machine and the command that made them, and `more`, to `out`.

    At any moment the file is whole: a run may be ended while it writes.
    """
    command = shlex.join(["python", *sys.argv])
    head = {"machine": machine(), "command": command, **more}
    out.parent.mkdir(parents=True, exist_ok=True)
    half = out.with_suffix(".half")
    half.write_text(text(head, filled(rows)))
    half.replace(out)


def add(out: Path, rows: list[Row], fresh: Sequence[Row]) -> None:
    """Put `fresh` behind `rows`, show it, and write all to `out`: a run may end before its end."""
    rows += fresh
    show(fresh)
    save(out, rows)


def show(rows: Sequence[Row]) -> None:
    """Print one short line per row."""
    for one in rows:
        kept = ("rival_value", "median_ms", "rival_median_ms", "spread")
        extra = {name: one[name] for name in kept if one.get(name) is not None}
        print(
            f"{one['bar_id']:<12} {one['case']:<18} {one['metric']:<44} {one['value']:<9} "
            f"bar {one.get('bar') or '-':<9} n={one['samples']:<4} {extra}",
            flush=True,
        )
