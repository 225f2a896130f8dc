"""Committed results of every benchmark and study -> which bars hold, computed from the figures.

Knows the format of a results file; must not know what any of them measures.

A results file is one JSON object with ``machine``, ``command`` and ``rows``. A row's ``bar`` is
nothing, or an operator and a bound, as ``<= 1.10``, ``>= 0.85 of the rival`` or ``>= the rival``;
what stands behind a comma says more to a reader and is not judged.
"""

from __future__ import annotations

import argparse
import json
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
BAR = re.compile(
    r"(?P<operator><=|>=|==|<|>) (?:(?P<bound>[\d.]+(?:e-?\d+)?)(?P<of> of the rival)?|the rival)"
    r"(?:, .+)?"
)
OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
REQUIRED = ("bar_id", "case", "metric", "value", "unit", "samples")


@dataclass(frozen=True)
class Judged:
    """One row with a bar, and whether it holds."""

    file: str
    row: dict[str, Any]
    holds: bool


def holds(row: dict[str, Any]) -> bool | None:
    """Return whether a row's bar holds; None for a row without one.

    Raises
    ------
    ValueError
        The bar is not in the form above, or there is no rival to compare with.
    """
    bar = row.get("bar")
    if not bar:
        return None
    found = BAR.fullmatch(bar)
    if found is None:
        raise ValueError(f"bar {bar!r} of {row['bar_id']} is no comparison")
    bound = float(found["bound"] or 1)
    if found["of"] or not found["bound"]:
        if row.get("rival_value") is None:
            raise ValueError(f"bar {bar!r} of {row['bar_id']} has no rival_value")
        bound *= float(row["rival_value"])
    return OPERATORS[found["operator"]](float(row["value"]), bound)


def results() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each committed results file: its path below ``benches``, and what it holds."""
    for path in sorted(ROOT.glob("**/results/*.json")):
        yield str(path.relative_to(ROOT)), json.loads(path.read_text())


def judged() -> Iterator[Judged]:
    """Yield every row that has a bar."""
    for name, result in results():
        for row in result["rows"]:
            verdict = holds(row)
            if verdict is not None:
                yield Judged(name, row, verdict)


def main() -> None:
    """Print how many rows of each bar hold, then every row that does not."""
    parser = argparse.ArgumentParser(description="which bars the committed results hold")
    parser.add_argument("prefix", nargs="?", default="", help="only ids that begin so, as 'mla.'")
    prefix = parser.parse_args().prefix
    rows = [found for found in judged() if found.row["bar_id"].startswith(prefix)]
    counts: dict[tuple[str, str], list[bool]] = {}
    for found in rows:
        counts.setdefault((found.row["bar_id"], found.file), []).append(found.holds)
    for (bar_id, file), verdicts in sorted(counts.items()):
        print(f"{bar_id:18} {sum(verdicts):4} of {len(verdicts):4} hold   {file}")
    for found in rows:
        if not found.holds:
            row = found.row
            what = f"{row['bar_id']} {row['case']}, {row['metric']}"
            print(f"missed: {what}: {row['value']} {row['unit']} (bar {row['bar']}; {found.file})")


if __name__ == "__main__":
    main()
