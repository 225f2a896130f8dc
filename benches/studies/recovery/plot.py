"""results/recovery.json -> results/recovery.svg: prefix cache, irminsul and upper bound per set.

Must not know how the numbers came about. Usage: python benches/studies/recovery/plot.py
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
    rows = json.loads((RESULTS / "recovery.json").read_text())["rows"]
    sets = [row for row in rows if row["metric"] == "prefix_and_reuse"]
    bounds = {row["case"]: row["value"] for row in rows if row["metric"] == "upper_bound"}
    figures.style("recovery", 9)
    figure, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    heights = range(len(sets))
    axes.barh(heights, [row["value"] for row in sets], color="#2a78b5", label="irminsul")
    prefix = [row["rival_value"] for row in sets]
    axes.barh(heights, prefix, color="#b9c3cc", label="exact prefix")
    marks = [bounds[row["case"]] for row in sets]
    axes.plot(marks, heights, "|", color="black", markersize=11, label="any 64 tokens seen before")
    axes.set_yticks(heights, [row["case"].removeprefix("variant_") for row in sets])
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of prompt tokens not computed again")
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, 1.14), ncols=3, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(RESULTS / "recovery.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
