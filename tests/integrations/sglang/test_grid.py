"""The engines that test_engine.py samples from, all of them, at delta 0.

IRMINSUL_TEST_GRID=1 python -m pytest tests/integrations/sglang/test_grid.py

The same variable makes test_engine.py run every scenario on the versions between the ends as well.
"""

from __future__ import annotations

import hosts
import pytest

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not hosts.EVERYTHING,
        reason=f"{len(hosts.GRID)} engine starts, about half an hour: set IRMINSUL_TEST_GRID=1",
    ),
]


@pytest.mark.parametrize("name", list(hosts.GRID))
def test_nothing_changes_at_delta_zero(name: str) -> None:
    found = hosts.facts(name)["delta0"]
    assert [case["holes"] for case in found["cases"]] == [1, 2, 3, 4, 5, 6]
    assert [case["holes"] for case in found["cases"] if not case["tokens_equal"]] == []
    assert all(case["deltas"] == [0] and case["reused"] > 0 for case in found["cases"])
    if hosts.GRID[name]["chunk"] < 0:
        assert all(case["rows_equal"] for case in found["cases"])
    assert found["batch"]["together"]
    assert found["batch"]["holed_equal"]
    assert found["batch"]["fresh_equal"]
