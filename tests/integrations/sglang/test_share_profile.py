"""Events of a trace -> what a request cost, and where two engines differ."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[3] / "benches" / "serving"))
from share_profile import busy, differences, sums


def event(name: str, start: float, length: float) -> dict[str, Any]:
    return {"name": name, "ts": start, "dur": length}


def test_what_runs_at_the_same_time_is_busy_once() -> None:
    events = [event("a", 0, 3000), event("b", 1000, 1000), event("c", 2000, 2000)]
    assert busy(events, requests=1) == 4.0
    assert busy([*events, event("d", 9000, 1000)], requests=2) == 2.5
    assert busy([], requests=1) == 0.0


def test_sums_are_of_one_request_and_the_longest_comes_first() -> None:
    found = sums([event("a", 0, 500), event("b", 0, 4000), event("a", 9, 1500)], requests=2)
    assert found == {"b": [0.5, 2.0], "a": [1.0, 1.0]}
    assert list(found) == ["b", "a"]


def test_the_largest_difference_comes_first_also_of_what_only_one_has() -> None:
    copy = {"kernels": {"moves": [1.0, 0.4], "same": [2.0, 9.0]}}
    share = {"kernels": {"same": [2.0, 9.1], "tiles": [1.0, 0.01]}}
    lines = differences({"copy": copy, "share": share}, "kernels", most=2)
    assert [line.split()[1] for line in lines] == ["moves", "same"]
    assert "-0.400 ms: 0.400 x1 -> 0.000 x0" in lines[0]
