"""Engines of two ranks: equal plans on both, and the same guarantees as on one."""

from __future__ import annotations

import hosts
import pytest

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(1800)]

TENSOR = [name for name in hosts.RANKS if name.endswith("tp2")]
DATA = [name for name in hosts.RANKS if name.endswith("dp2")]


@pytest.mark.parametrize("name", TENSOR)
class TestTensorParallel:
    """Two ranks that serve the same requests."""

    def test_both_ranks_announce_themselves(self, name: str) -> None:
        log = hosts.facts(name)["log"]
        assert log.count("2 ranks agree on every plan") == 2

    def test_both_ranks_planned_the_same(self, name: str) -> None:
        parallel = hosts.facts(name)["parallel"]
        first, second = parallel["plans"]
        assert first == second >= 6
        assert parallel["requests_equal"]
        assert parallel["tensors_equal"] == {
            "source_slots": True,
            "target_slots": True,
            "deltas": True,
            "source_rows": True,
        }

    def test_documents_were_reused(self, name: str) -> None:
        cached = hosts.facts(name)["parallel"]["cached"]
        assert sum(count >= 190 for count in cached) >= 8

    def test_nothing_changes_at_delta_zero(self, name: str) -> None:
        found = hosts.facts(name)["delta0"]
        assert [case["holes"] for case in found["cases"]] == [1, 3]
        assert all(case["tokens_equal"] and case["reused"] > 0 for case in found["cases"])
        assert found["batch"]["holed_equal"]
        assert found["batch"]["fresh_equal"]

    def test_every_row_belongs_to_its_token_and_position(self, name: str) -> None:
        stale = hosts.facts(name)["stale"]
        assert stale["checked"] > 1000
        assert stale["wrong_latent"] == stale["wrong_keys"] == 0

    def test_nothing_fell_back_unasked(self, name: str) -> None:
        assert hosts.facts(name)["counts"]["fallback"].keys() <= {"exact"}


@pytest.mark.parametrize("name", DATA)
class TestAttentionDataParallel:
    """Two ranks that serve different requests and compute the rest of a layer together."""

    def test_each_rank_reuses_what_it_has_served(self, name: str) -> None:
        shared = hosts.facts(name)["shared"]
        assert shared["first"] == [0, 0]
        assert shared["other_rank"] == [0, 0]
        assert min(shared["same_rank"]) >= 190
        assert shared["exact"] == 0

    def test_batches_with_and_without_plans_meet(self, name: str) -> None:
        together = hosts.facts(name)["shared"]["together"]
        assert [tokens for _, tokens in together] == [12] * 8
        assert min(cached for cached, _ in together[:6]) >= 190
        assert [cached for cached, _ in together[6:]] == [0, 0]

    def test_nothing_fell_back_unasked(self, name: str) -> None:
        assert hosts.facts(name)["counts"]["fallback"].keys() <= {"exact"}
