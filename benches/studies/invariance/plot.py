"""results/invariance.json -> results/invariance.svg: AUC of each part of a row.

Must not know how the numbers came about. Usage: python benches/studies/invariance/plot.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).parents[1]))

import figures

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    rows = json.loads((RESULTS / "invariance.json").read_text())["rows"]
    rows.sort(key=lambda row: row["value"])
    figures.style("invariance", 9)
    figure, axes = plt.subplots(figsize=(7.2, 0.6 + 0.3 * len(rows)), layout="constrained")
    moved = [row["case"].endswith(("k_r", "keys")) for row in rows]
    colours = ["#c2541b" if under_rope else "#2a78b5" for under_rope in moved]
    axes.barh([row["case"] for row in rows], [row["value"] for row in rows], color=colours)
    axes.axvline(0.5, color="black", linewidth=0.8, linestyle=":")
    axes.set_xlim(0, 1)
    axes.set_xlabel("AUC: same text elsewhere, against other text (orange: under RoPE)")
    axes.spines[["top", "right"]].set_visible(False)
    figures.write(figure, RESULTS / "invariance.svg")


if __name__ == "__main__":
    main()
