"""Rows that are written behind are those of the tree, whatever the tree does meanwhile."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "integrations" / "sglang"))

import hosts

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("version", hosts.ENDS)
def test_random_traffic_writes_true_rows_and_gives_its_locks_back(version: str) -> None:
    done = hosts.run(version, Path(__file__).parent / "driver" / "writer_fuzz.py", "320")
    assert done.returncode == 0, done.stderr[-4000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("FACTS "))
    for found in json.loads(line.removeprefix("FACTS ")):
        assert found["tier_lies"] == 0, found
        assert found["lies"] == 0, found
        assert found["tier_rows"] > 5000, found
        assert found["written"] > 5000, found
        assert found["locked"] == found["protected"] == 0, found
        assert not found["broken"], found
        assert found["fallback"].keys() <= {"exact"}, found
