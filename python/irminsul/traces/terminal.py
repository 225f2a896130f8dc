"""A report -> tables in a terminal.

Must not know how the numbers came about. Needs the package ``rich``.
"""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["print_report"]

# column: key of the report's rows
COLUMNS = {
    "calls": "calls",
    "tokens": "prompt_tokens",
    "prefix\n%": "prefix_percent",
    "irminsul\n%": "irminsul_percent",
    "bound\n%": "upper_bound_percent",
    "capped\nprefix": "prefix_percent_at_capacity",
    "capped\nirminsul": "irminsul_percent_at_capacity",
    "spans": "spans_per_prompt",
}


# Leaves room for the numbers in 80 columns.
_FIRST_COLUMN = 12


def print_report(report: dict[str, Any], console: Console, max_turns: int = 12) -> None:
    """Print the report of `irminsul.traces.report.as_json`.

    Parameters
    ----------
    report : dict
    console : rich.console.Console
    max_turns : int
        Turns shown for each file.
    """
    files = report["files"]
    rows = [(file["file"], file["total"]) for file in files]
    if len(files) > 1:
        rows.append(("all files", report["total"]))
    console.print(_table("Prompt tokens that need not be computed", "file", rows))
    for file in files:
        turns = [(str(row["turn"]), row) for row in file["turns"][:max_turns]]
        if len(turns) > 1:
            console.print(_table(f"{file['file']}, turn by turn", "turn", turns))
        if file["causes"]:
            console.print(_causes(file))
        if file["malformed_lines"]:
            _print_malformed(file, console)
    console.print(Text(_summary(report)))


def _table(title: str, first: str, rows: list[tuple[str, dict[str, Any]]]) -> Table:
    shown = {name: key for name, key in COLUMNS.items() if key in rows[0][1]}
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(first, overflow="fold", min_width=_FIRST_COLUMN)
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    for label, row in rows:
        table.add_row(Text(label), *(_number(row[key]) for key in shown.values()))
    return table


def _number(value: float) -> str:
    """Keep four digits or so: `1,234`, `56.7k`, `8.43M`, `39.2`."""
    if isinstance(value, float):
        return f"{value:,.1f}"
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**4, "k")):
        if value >= unit:
            scaled = value / (1000 if name == "k" else unit)
            return f"{scaled:.3g}{name}" if scaled < 1000 else f"{scaled:.0f}{name}"
    return f"{value:,d}"


def _causes(file: dict[str, Any]) -> Table:
    title = f"{file['file']}, why prefixes break"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 1, 0))
    table.add_column("cause", min_width=_FIRST_COLUMN)
    table.add_column("times", justify="right")
    table.add_column("tokens lost", justify="right")
    table.add_column("example: was / is")
    table.add_column("what to do")
    for row in file["causes"]:
        example = Text(f"{row.get('before', '')}\n{row.get('after', '')}")
        lost = f"{row['lost_tokens']:,d}"
        table.add_row(row["cause"], f"{row['count']:,d}", lost, example, row["advice"])
    return table


def _print_malformed(file: dict[str, Any], console: Console) -> None:
    console.print(Text(f"{file['malformed_lines']} lines of {file['file']} were skipped:"))
    for line in file["first_malformed"][:5]:
        console.print(Text(f"  line {line['line']}: {line['reason']}"))


def _summary(report: dict[str, Any]) -> str:
    total = report["total"]
    extra = total["irminsul_percent"] - total["prefix_percent"]
    return (
        f"A prefix cache serves {total['prefix_percent']:.1f} % of the prompt tokens; irminsul "
        f"serves {extra:.1f} % more and leaves {total['computed_tokens']:,d} tokens to compute. "
        f"That saves about {total['saved_seconds']:,.1f} s of prefill for {report['model']} at "
        f"{report['teraflops']:g} TFLOP/s."
    )
