"""results/limits.json -> results/limits.svg: time to the first token against cold, by share moved.

Must not know how the numbers came about. Usage: python benches/studies/limits/plot.py
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import figures

RESULTS = Path(__file__).parent / "results"
CASE = re.compile(r"(\d+) tokens, (\d+) % moved, (\d+) holes")
COLOURS = {2: "#2a78b5", 9: "#3a9455", 33: "#c2541b", 129: "#7d4fa3"}


def main() -> None:
    figures.style("limits", 8)
    rows = json.loads((RESULTS / "limits.json").read_text())["rows"]
    cells: dict[int, dict[int, list[tuple[int, dict[str, Any]]]]] = {}
    for row in rows:
        length, share, holes = map(int, CASE.fullmatch(row["case"]).groups())  # type: ignore[union-attr]
        cells.setdefault(length, {}).setdefault(holes, []).append((share, row))
    figure, grid = figures.panels(len(cells), (7.2, 2.2))
    for axes, (length, lines) in zip(grid, sorted(cells.items()), strict=True):
        axes.axhline(1, color="black", linewidth=0.6, linestyle=":")
        for holes, points in sorted(lines.items()):
            shares, found = zip(*sorted(points, key=lambda point: point[0]), strict=True)
            value = [row["value"] for row in found]
            axes.plot(shares, value, color=COLOURS[holes], linewidth=1, label=f"{holes}")
        axes.set_title(f"{length:,}", fontsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    grid[-1].legend(frameon=False, fontsize=6, title="holes", title_fontsize=6)
    figure.supxlabel("% of the prompt moved; above each panel: tokens")
    figure.supylabel("first token, of cold")
    grid[0].set_xticks([10, 50, 90])
    figures.write(figure, RESULTS / "limits.svg")


if __name__ == "__main__":
    main()
