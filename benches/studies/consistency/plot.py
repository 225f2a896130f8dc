"""results/*.json -> results/*.svg of the same names: points lost against tokens computed.

Must not know how the numbers came about. Usage: python benches/studies/consistency/plot.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

RESULTS = Path(__file__).parent / "results"
KINDS = ("single", "hop2", "tool")
SCENARIOS = ("shifted", "reordered", "deleted", "chain")
COLOURS = {"naive": "#c2541b", "irminsul": "#2a78b5", "head": "#3a9455", "select": "#7d4fa3"}


def main() -> None:
    for path in sorted(RESULTS.glob("*.json")):
        draw(path)


def draw(path: Path) -> None:
    """One panel for each scenario and kind of question."""
    rows = json.loads(path.read_text())["rows"]
    table = {row["case"]: row for row in rows if row["metric"] == "accuracy"}
    present = {case.split(", ")[0] for case in table}
    names = [name for name in SCENARIOS if name in present]
    mpl.rcParams.update({"svg.hashsalt": "consistency", "svg.fonttype": "none", "font.size": 8})
    figure, grid = plt.subplots(
        len(KINDS),
        len(names),
        figsize=(7.2, 5.4),
        sharex=True,
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    for line, kind in zip(grid, KINDS, strict=True):
        for axes, scenario in zip(line, names, strict=True):
            _panel(axes, table, f"{scenario}, {kind}, ")
            axes.set_title(f"{scenario}, {kind}", fontsize=8)
            axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("% of the context computed")
    figure.supylabel("points of accuracy lost against full prefill")
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    plt.close(figure)


def _panel(axes: plt.Axes, table: dict[str, dict[str, Any]], start: str) -> None:
    axes.axhline(2, color="black", linewidth=0.6, linestyle=":")
    for case, cell in table.items():
        arm = case.removeprefix(start)
        if not case.startswith(start) or arm.startswith("full prefill"):
            continue
        colour = next((c for name, c in COLOURS.items() if arm.startswith(name)), "#8a949c")
        lost, low, high = cell["points_lost"]
        bars = [[lost - low], [high - lost]]
        axes.errorbar(
            cell["computed"], lost, bars, fmt="o", color=colour, markersize=3, linewidth=1
        )
        axes.annotate(
            arm, (cell["computed"], lost), fontsize=5, xytext=(2, 2), textcoords="offset points"
        )


if __name__ == "__main__":
    main()
