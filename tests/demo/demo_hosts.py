"""Where the SGLang versions are that the demo runs on: the ends of the range, or all on request."""

import os
from pathlib import Path

import pytest

HOSTS = Path(os.environ.get("IRMINSUL_TEST_HOSTS", Path(__file__).parents[2] / ".hosts"))
# Versions that only their sources are read of have no such mark, and start slowly.
_FOUND = sorted(path.parent.name for path in HOSTS.glob("*/.complete"))
if not os.environ.get("IRMINSUL_TEST_GRID"):
    _FOUND = sorted({*_FOUND[:1], *_FOUND[-1:]})
_NONE = pytest.param("none", marks=pytest.mark.skip(reason=f"no SGLang unpacked in {HOSTS}"))

each_version = pytest.mark.parametrize("version", _FOUND or [_NONE])


def environment(version):
    """The environment of a process that imports this SGLang version."""
    return {**os.environ, "PYTHONPATH": str(HOSTS / version)}
