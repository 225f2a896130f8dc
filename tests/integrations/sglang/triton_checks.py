"""A file of checks on Triton kernels -> its outcome: compiled on a GPU, interpreted elsewhere.

In a process of its own, because Triton decides between the two when it is imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

_DRIVER = Path(__file__).parent / "driver"


def run(name: str) -> subprocess.CompletedProcess[str]:
    """Run the checks in the file `name` of the driver's folder; skips where Triton is missing."""
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "0" if torch.cuda.is_available() else "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(_DRIVER / name)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
