"""Results of run.py -> one figure beside them: bandwidth over size, time against what it replaces.

python benches/kernels/relocate/plot.py benches/kernels/relocate/results/h200.json
"""

import argparse
import json
import re
import sys
from pathlib import Path

import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "studies"))
from figures import style, write

PLAIN = re.compile(r"^(\d+) tokens x 27 layers, bf16, pairs, spans of 128$")


def series(rows: list[dict], metric: str, value: str, rival: str | None = None) -> list[list]:
    """Return [tokens, values] of the plain cases, in order of size."""
    points = []
    for row in rows:
        found = PLAIN.match(row["case"])
        if found and row["metric"] == metric and rival in (None, row["rival"]):
            points.append((int(found.group(1)), row[value]))
    return [list(axis) for axis in zip(*sorted(points), strict=True)]


def draw(report: dict, out: Path) -> None:
    style("relocate", 10)
    rows = report["rows"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.8))
    bandwidth = "bandwidth, read and written"
    left.plot(*series(rows, bandwidth, "rival_value"), "o--", color="0.5", label="device copy")
    left.plot(*series(rows, bandwidth, "value"), "o-", label="relocate_rows")
    left.set(xlabel="tokens (27 layers)", ylabel="GB/s, read and written", ylim=0)
    right.plot(*series(rows, "time in a CUDA graph", "value"), "o-", label="relocate_rows")
    for rival in dict.fromkeys(row["rival"] for row in rows if row["metric"] == "time"):
        right.plot(*series(rows, "time", "rival_value", rival), "o--", label=rival)
    right.set(xlabel="tokens (27 layers)", ylabel="us", yscale="log")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncol=2)
    figure.suptitle(report["machine"], fontsize=9)
    figure.tight_layout()
    write(figure, out.with_suffix(".svg"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    arguments = parser.parse_args()
    draw(json.loads(arguments.results.read_text()), arguments.results)


if __name__ == "__main__":
    main()
