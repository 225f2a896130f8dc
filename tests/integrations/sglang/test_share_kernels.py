"""The Triton kernel of borrowed tiles: compiled on a GPU, interpreted elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
CHECKS = Path(__file__).parent / "driver" / "share_kernels.py"


def test_the_kernel_equals_plain_torch() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0" if torch.cuda.is_available() else "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CHECKS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "1 passed" in done.stdout
