"""Where the SGLang versions are that engine tests run against."""

import os
from pathlib import Path

import pytest

HOSTS = Path(os.environ.get("IRMINSUL_TEST_HOSTS", Path(__file__).parents[2] / ".hosts"))
_FOUND = sorted(path.name for path in HOSTS.glob("*") if (path / "sglang").is_dir())
_NONE = pytest.param("none", marks=pytest.mark.skip(reason=f"no SGLang unpacked in {HOSTS}"))

each_version = pytest.mark.parametrize("version", _FOUND or [_NONE])


def environment(version):
    """The environment of a process that imports this SGLang version."""
    return {**os.environ, "PYTHONPATH": str(HOSTS / version)}
