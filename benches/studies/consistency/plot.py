"""results/reading.json -> results/two-hop.svg: points lost over two links against tokens computed.

Must not know how the numbers came about. Usage: python benches/studies/consistency/plot.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).parents[1]))

import figures

RESULTS = Path(__file__).parent / "results"
SCENARIOS = ("reordered", "chain")
COLOURS = {
    "naive": "#c2541b",
    "irminsul": "#2a78b5",
    "head": "#3a9455",
    "tail": "#8a8a3a",
    "select": "#7d4fa3",
    "layer": "#b05a8c",
    "relink": "#111111",
}


def main() -> None:
    figures.style("consistency", 8)
    rows = json.loads((RESULTS / "reading.json").read_text())["rows"]
    cells = {row["case"]: row for row in rows if row["metric"] == "accuracy"}
    present = [s for s in SCENARIOS if f"{s}, hop2, irminsul" in cells]
    panels = [(scenario, _arms(cells, f"{scenario}, hop2, ")) for scenario in present]
    figure, grid = figures.panels(len(panels), (6.4, 2.6))
    for axes, (title, arms) in zip(grid, panels, strict=True):
        _panel(axes, arms)
        axes.set_title(title, fontsize=7)
    grid[0].legend(frameon=False, fontsize=6)
    figure.supxlabel("% of the context computed")
    figure.supylabel("points lost over two links")
    figures.write(figure, RESULTS / "two-hop.svg")


def _arms(cells: dict[str, dict[str, Any]], start: str) -> dict[str, dict[str, Any]]:
    """Cells of one panel by arm, full prefill left out."""
    found = {case.removeprefix(start): c for case, c in cells.items() if case.startswith(start)}
    return {arm: cell for arm, cell in found.items() if not arm.startswith("full prefill")}


def _panel(axes: plt.Axes, arms: dict[str, dict[str, Any]]) -> None:
    axes.axhline(2, color="black", linewidth=0.6, linestyle=":")
    for name, colour in COLOURS.items():
        cells = [cell for arm, cell in arms.items() if arm.startswith(name)]
        if not cells:
            continue
        lost = [cell["points_lost"] for cell in cells]
        axes.errorbar(
            [cell["computed"] for cell in cells],
            [value for value, _, _ in lost],
            [[v - low for v, low, _ in lost], [high - v for v, _, high in lost]],
            fmt="o",
            color=colour,
            markersize=3,
            linewidth=1,
            label=name,
        )
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main()
