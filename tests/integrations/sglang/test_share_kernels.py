"""The Triton kernel of borrowed tiles: compiled on a GPU, interpreted elsewhere."""

from __future__ import annotations

import triton_checks


def test_the_kernel_equals_plain_torch() -> None:
    done = triton_checks.run("share_kernels.py")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "1 passed" in done.stdout
