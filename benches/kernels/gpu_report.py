"""Rows of a kernel's bench -> its results file, with the GPU and the build that made them.

Shared by the benches of all kernels; knows nothing of what was measured.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from irminsul import native

sys.path.append(str(Path(__file__).parents[1]))

from results_file import text


def machine() -> str:
    """Return what the figures hold for: GPU, torch, and the library's build."""
    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {native.build_info()}"


def save(out: Path | None, command: str, rows: Sequence[dict[str, Any]]) -> None:
    """Write `rows` and the `command` that made them to `out`, if there is one; one row a line."""
    if out is not None:
        out.write_text(text({"machine": machine(), "command": command}, rows))
