"""What all figures of studies and kernels have in common, and an SVG file of each.

Must not know what is drawn.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

mpl.use("Agg")
import matplotlib.pyplot as plt

_LONG = re.compile(r"-?\d+\.\d{2,}")
_STYLE = re.compile(r' style="([^"]*)"')


def style(name: str, size: int) -> None:
    """Set fonts of `size` points; `name` keeps the file the same when the numbers are."""
    mpl.rcParams.update({"svg.hashsalt": name, "svg.fonttype": "none", "font.size": size})


def panels(count: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """Return a figure of `size` inches, and its panels: `count` in a row, with the same axes."""
    figure, grid = plt.subplots(
        1, count, figsize=size, sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    return figure, list(grid.flat)


def write(figure: Figure, path: Path) -> None:
    """Write coordinates to a tenth of a point, one element after the other, and no date."""
    made = io.StringIO()
    figure.savefig(made, format="svg", metadata={"Date": None})
    lines = (line.strip() for line in made.getvalue().splitlines())
    text = "\n".join(line for line in lines if line)
    text = re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL)
    text = re.sub(r"<metadata>.*?</metadata>\n?", "", text, flags=re.DOTALL)
    short = _LONG.sub(lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), text)
    path.write_text(_classes(short))


def _classes(text: str) -> str:
    """Say each style once that elements share: it is half of a figure otherwise."""
    text = re.sub(r'<g id="[^"]*">', "<g>", text)
    counts = Counter(_STYLE.findall(text))
    names = {style: f"s{n}" for n, style in enumerate(s for s, c in counts.items() if c > 1)}
    text = _STYLE.sub(
        lambda found: f' class="{names[found[1]]}"' if found[1] in names else found[0], text
    )
    rules = "".join(f"\n.{name}{{{style}}}" for style, name in names.items())
    return text.replace("</style>", f"{rules}</style>", 1)
