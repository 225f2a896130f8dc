"""A matplotlib figure -> an SVG file without what no eye can see.

Must not know what is drawn.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

from matplotlib.figure import Figure

_LONG = re.compile(r"-?\d+\.\d{2,}")


def write(figure: Figure, path: Path) -> None:
    """Write coordinates to a tenth of a point, one element after the other, and no date."""
    made = io.StringIO()
    figure.savefig(made, format="svg", metadata={"Date": None})
    lines = (line.strip() for line in made.getvalue().splitlines())
    text = "\n".join(line for line in lines if line)
    text = re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL)
    text = re.sub(r"<metadata>.*?</metadata>\n?", "", text, flags=re.DOTALL)
    path.write_text(_LONG.sub(lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), text))
