"""Rows of a bench -> the text of its results file, one row a line.

Must not know what was measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any


def text(head: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """Return JSON: what `head` says of the run, then its rows."""
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    return json.dumps(head, indent=1)[:-2] + f',\n "rows": [\n{lines}\n ]\n}}\n'


def filled(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows without their empty fields, but for `samples`, which every row has to name."""
    return [{k: v for k, v in row.items() if v is not None or k == "samples"} for row in rows]
