"""New weights: nothing that the old ones computed is served again."""

from __future__ import annotations

import hosts
import pytest

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("source", ["disk", "tensor"])
@pytest.mark.parametrize("name", list(hosts.UPDATED))
def test_new_weights_forget_everything(name: str, source: str) -> None:
    weights = hosts.facts(name)["weights"][source]
    assert weights["updated"]
    assert weights["first"] == weights["after"] == 0
    assert min(weights["before"], weights["again"]) >= 180
