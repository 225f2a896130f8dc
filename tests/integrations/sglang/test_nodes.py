"""Used donors outlive unused ones, in an order that every rank has."""

from __future__ import annotations

import pytest
from irminsul.integrations.sglang.tree import nodes


class Node:
    def __init__(self, parent: Node | None, used: float = 0.0) -> None:
        self.parent = parent
        self.last_access_time = used


@pytest.mark.parametrize("moments", [[7.0] * 9, [7.0, 7.5, 7.5, 8.0, 8.0, 8.0, 8.0, 9.0, 9.0]])
def test_donors_of_one_batch_are_used_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, moments: list[float]
) -> None:
    clock = iter(moments)
    monkeypatch.setattr(nodes.time, "monotonic", lambda: next(clock))
    root = Node(None)
    branch = Node(root)
    leaves = [Node(branch), Node(root), Node(root), Node(branch)]
    nodes.touch([*leaves, leaves[0]])
    times = [leaf.last_access_time for leaf in leaves]
    assert times == sorted(set(times))
    assert times[0] == moments[0]
    assert times[-1] < moments[3] + 1e-9
    assert root.last_access_time == branch.last_access_time == times[-1]


def test_what_was_used_later_stays_so() -> None:
    root = Node(None, used=1e300)
    leaf = Node(root)
    nodes.touch([leaf])
    assert 0.0 < leaf.last_access_time < root.last_access_time == 1e300
