"""Results of run.py -> a roofline: work per byte against the rate that was reached.

python benches/kernels/mla/plot.py results/h200.json results/h200.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt


def main(source: Path, target: Path) -> None:
    rows = json.loads(source.read_text())["rows"]
    named = {(row["bar_id"], row["case"]): row for row in rows}
    read = named["mla.read", "2 GiB"]["value"]
    peak = named["mla.product", "8192 x 8192 x 8192"]["value"]
    figure, axes = plt.subplots(figsize=(7, 4.2))
    work = [10, peak * 1e3 / read, 3e4]
    axes.plot(work, [min(peak, w * read / 1e3) for w in work], color="black", linewidth=1)
    for (bar_id, case), row in named.items():
        if bar_id != "mla.rate":
            continue
        intensity = row["value"] * 1e3 / named["mla.bandwidth", case]["value"]
        time = named.get(("mla.1", case)) or named["mla.4", case]
        axes.plot(intensity, row["value"], "o", color="tab:blue", markersize=5)
        if time["rival_value"]:
            rival = row["value"] * time["value"] / time["rival_value"]
            axes.plot(intensity, rival, "x", color="tab:orange", markersize=5)
    axes.set(xscale="log", yscale="log", xlabel="FLOP per byte", ylabel="TFLOP/s")
    axes.set(xlim=(10, 3e4), ylim=(20, 1200))
    axes.plot([], [], "o", color="tab:blue", label="irminsul")
    axes.plot([], [], "x", color="tab:orange", label="FlashMLA")
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
