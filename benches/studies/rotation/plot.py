"""results/rotation-*.json -> results/rotation.svg: error over delta, each way of turning a line.

Must not know how the numbers came about. Usage: python benches/studies/rotation/plot.py
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).parents[1]))

import figures

RESULTS = Path(__file__).parent / "results"
LINES = {
    "key_against_float64_turn": ("key, against its float64 rotation", "#2a78b5"),
    "key_against_exact_key": ("key, against the exact key at the target", "#c2541b"),
    "exact_key_rounded": ("computed key: bf16 rounding alone", "#8a949c"),
    "attention_fused": ("attention, turned in the load", "#3a9455"),
    "attention_unfused": ("attention, moved first", "#7d4fa3"),
}


def main() -> None:
    newest = max(RESULTS.glob("rotation-*.json"))  # cuda sorts behind cpu
    rows = json.loads(newest.read_text())["rows"]
    figures.style("rotation", 9)
    figure, axes = plt.subplots(figsize=(7.2, 3.4), layout="constrained")
    for metric, (label, colour) in LINES.items():
        worst: dict[int, float] = {}
        for row in rows:
            if row["metric"] == metric:
                delta = int(re.match(r"delta (\d+)", row["case"])[1])
                worst[delta] = max(worst.get(delta, 0.0), row["value"])
        axes.plot(list(worst), list(worst.values()), "o-", color=colour, label=label, markersize=3)
    axes.axhline(4.7e-3, color="black", linewidth=0.8, linestyle=":")
    axes.text(1, 4.75e-3, "paper", va="bottom")
    axes.set_xscale("log", base=2)
    axes.set_ylim(0, 5.5e-3)
    axes.set_xlabel("delta, positions (worst source position)")
    axes.set_ylabel("relative L2 error")
    axes.legend(frameon=False, fontsize=7.5, loc="center left", bbox_to_anchor=(0.0, 0.62))
    axes.spines[["top", "right"]].set_visible(False)
    figures.write(figure, RESULTS / "rotation.svg")


if __name__ == "__main__":
    main()
