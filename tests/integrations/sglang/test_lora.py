"""Adapters: rows of one are never another's, and holes are computed with the right one."""

from __future__ import annotations

import hosts
import pytest

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("name", list(hosts.ADAPTERS))
class TestAdapters:
    """One base model, two adapters."""

    def test_each_adapter_reuses_its_own_rows(self, name: str) -> None:
        tenants = hosts.facts(name)["lora"]["tenants"]
        assert tenants["first"] == tenants["other"] == tenants["none"] == 0
        assert min(tenants["same"], tenants["other_same"]) >= 180

    def test_holes_are_computed_with_their_adapter(self, name: str) -> None:
        delta0 = hosts.facts(name)["lora"]["delta0"]
        assert delta0["adapter_matters"]
        assert delta0["cached"][0] > 0
        assert delta0["cached"][1] > 0
        assert delta0["cached"][2] == 0
        assert delta0["tokens_equal"] == [True, True, True]

    def test_an_adapter_that_is_loaded_again_starts_empty(self, name: str) -> None:
        reload = hosts.facts(name)["lora"]["reload"]
        assert reload["first"] == reload["after"] == 0
        assert min(reload["before"], reload["again"]) >= 180

    def test_nothing_fell_back(self, name: str) -> None:
        assert hosts.facts(name)["counts"]["fallback"].keys() <= {"exact"}
