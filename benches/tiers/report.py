"""Rows of a bench -> its results file.

Must not know what was measured.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def processor() -> str:
    """Return what kind of processor this is, and how many."""
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs"


def save(out: Path | None, machine: str, command: str, rows: Sequence[dict[str, Any]]) -> None:
    """Write `rows` to `out`, if there is one, with the machine and the command that made them."""
    if out is not None:
        result = {"machine": machine, "command": f"python benches/tiers/{command}", "rows": rows}
        out.write_text(json.dumps(result, indent=2) + "\n")
