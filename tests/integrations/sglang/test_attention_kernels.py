"""Triton kernels of the attention backend: compiled on a GPU, interpreted elsewhere."""

from __future__ import annotations

import triton_checks


def test_kernels_equal_plain_torch() -> None:
    done = triton_checks.run("attention_kernels.py")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
