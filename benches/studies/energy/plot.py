"""results/energy.json -> results/energy.svg: energy saved per hit, beside what the paper says.

Must not know how the numbers came about. Usage: python benches/studies/energy/plot.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).parents[1]))

import figures

RESULTS = Path(__file__).parent / "results"
KINDS = {
    "prefix hit, 150 tokens new": ("#9db8cf", "exact prefix, 150 tokens new"),
    "prefix hit, 83 % known": ("#2a78b5", "exact prefix, 83 % known"),
    "irminsul hit, 150 tokens new": ("#e2b08f", "moved, 150 tokens new"),
    "irminsul hit, 83 % known": ("#c2541b", "moved, 83 % known"),
}
WIDTH = 0.2
PAPER = 63


def main() -> None:
    figures.style("energy", 8)
    rows = json.loads((RESULTS / "energy.json").read_text())["rows"]
    saved = {row["case"]: row["value"] for row in rows if row["metric"] == "energy saved"}
    names = list(dict.fromkeys(case.split(", ")[0] for case in saved))
    figure, axes = plt.subplots(figsize=(6.4, 2.6), layout="constrained")
    for index, (kind, (colour, label)) in enumerate(KINDS.items()):
        places = [n for n, name in enumerate(names) if f"{name}, {kind}" in saved]
        axes.bar(
            [place + (index - 1.5) * WIDTH for place in places],
            [saved[f"{names[place]}, {kind}"] for place in places],
            WIDTH,
            color=colour,
            label=label,
        )
    axes.axhline(PAPER, color="black", linewidth=0.6, linestyle=":")
    axes.text(len(names) - 0.75, PAPER, "paper, per hit", ha="left", va="center", fontsize=6)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("% of a cold prompt's energy saved")
    axes.set_ylim(0, 100)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, fontsize=6, ncols=4, loc="outside upper center")
    figures.write(figure, RESULTS / "energy.svg")


if __name__ == "__main__":
    main()
