"""results/{consistency,reading}.json -> results/two-hop.svg: points lost against tokens computed.

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
FILES = {"consistency.json": "follows when asked", "reading.json": "follows when it reads"}
SCENARIOS = ("shifted", "reordered", "deleted", "chain")
COLOURS = {"naive": "#c2541b", "irminsul": "#2a78b5", "head": "#3a9455", "select": "#7d4fa3"}


def main() -> None:
    mpl.rcParams.update({"svg.hashsalt": "consistency", "svg.fonttype": "none", "font.size": 8})
    panels = []
    for name, label in FILES.items():
        rows = json.loads((RESULTS / name).read_text())["rows"]
        cells = {row["case"]: row for row in rows if row["metric"] == "accuracy"}
        present = [s for s in SCENARIOS if f"{s}, hop2, irminsul" in cells]
        panels += [(f"{label}: {s}", _arms(cells, f"{s}, hop2, ")) for s in present]
    columns = 4
    lines = -(-len(panels) // columns)
    figure, grid = plt.subplots(
        lines,
        columns,
        figsize=(7.2, 2.0 * lines),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, (title, arms) in zip(grid.flat, panels, strict=False):
        _panel(axes, arms)
        axes.set_title(title, fontsize=7)
    figure.supxlabel("% of the context computed")
    figure.supylabel("points lost over two links")
    figure.savefig(RESULTS / "two-hop.svg", metadata={"Date": None})


def _arms(cells: dict[str, dict[str, Any]], start: str) -> dict[str, dict[str, Any]]:
    """Cells of one panel by arm, full prefill left out."""
    found = {case.removeprefix(start): c for case, c in cells.items() if case.startswith(start)}
    return {arm: cell for arm, cell in found.items() if not arm.startswith("full prefill")}


def _panel(axes: plt.Axes, arms: dict[str, dict[str, Any]]) -> None:
    axes.axhline(2, color="black", linewidth=0.6, linestyle=":")
    for name, colour in COLOURS.items():
        cells = [cell for arm, cell in arms.items() if arm.startswith(name)]
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
    axes.legend(frameon=False, fontsize=6)


if __name__ == "__main__":
    main()
