"""What real SGLang engines do with irminsul, on the CPU, one process per engine."""

from __future__ import annotations

from typing import Any

import hosts
import pytest

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(1800)]

ALL = list(hosts.ENGINES)
WHOLE = [name for name in ALL if "whole" in name]
TINY = [name for name in ALL if "chunk128" in name]


def facts(name: str) -> dict[str, Any]:
    return hosts.facts(name)


@pytest.mark.parametrize("name", ALL)
class TestDeltaZero:
    """The same prompt again, computed in holes only: nothing may change."""

    def test_tokens_equal_a_full_prefill(self, name: str) -> None:
        cases = facts(name)["delta0"]["cases"]
        assert [case["holes"] for case in cases if not case["tokens_equal"]] == []

    def test_most_of_the_prompt_was_reused_at_delta_zero(self, name: str) -> None:
        for case in facts(name)["delta0"]["cases"]:
            assert case["deltas"] == [0]
            assert case["cached"] == case["reused"]
            assert case["reused"] >= 165 - 7 * case["holes"] - 10 * case["rounds"]

    def test_as_many_holes_as_asked_for(self, name: str) -> None:
        for case in facts(name)["delta0"]["cases"]:
            if case["rounds"] == 1:
                assert len(case["hole_lengths"][0]) == case["holes"]

    def test_one_batch_of_two_requests_of_which_one_has_holes(self, name: str) -> None:
        batch = facts(name)["delta0"]["batch"]
        assert batch["together"]
        assert batch["holed_equal"]
        assert batch["fresh_equal"]
        assert batch["cached"][0] > 0
        assert batch["cached"][1] == 0


@pytest.mark.parametrize("name", WHOLE)
def test_rows_of_every_layer_are_bit_equal_at_delta_zero(name: str) -> None:
    cases = facts(name)["delta0"]["cases"]
    assert [case["holes"] for case in cases] == [1, 2, 3, 4, 5, 6]
    assert all(min(case["hole_lengths"][0]) >= 2 for case in cases)
    assert [case["holes"] for case in cases if not case["rows_equal"]] == []


@pytest.mark.parametrize("shift", ["later", "earlier"])
@pytest.mark.parametrize("name", WHOLE)
class TestShifted:
    """A document that moved behind another header."""

    def test_the_document_is_reused(self, name: str, shift: str) -> None:
        moved = facts(name)["shifted"][shift]
        assert moved["reused"] == moved["cached"] >= 290
        assert moved["cold_cached"] == 0
        assert (moved["deltas"][0] > 0) == (shift == "later")

    def test_latents_are_copied_bit_for_bit_in_every_layer(self, name: str, shift: str) -> None:
        assert facts(name)["shifted"][shift]["latent_copied"]

    def test_layer_zero_is_what_the_model_computes_there(self, name: str, shift: str) -> None:
        moved = facts(name)["shifted"][shift]
        assert moved["latent_equals_model"]
        assert moved["key"]["relative"] <= 3.0e-3
        assert moved["key"]["ulps"] <= 2.0

    def test_keys_without_rotation_would_be_far_off(self, name: str, shift: str) -> None:
        moved = facts(name)["shifted"][shift]
        assert moved["key_not_turned"]["relative"] > 100 * moved["key"]["relative"]

    def test_logits_and_rows_equal_the_oracle_of_the_same_holes(
        self, name: str, shift: str
    ) -> None:
        oracle = facts(name)["shifted"][shift]["oracle"]
        # The unit is the engine's own bf16 error on a full prefill of the same prompt.
        assert oracle["rows"] <= 2 * oracle["rows_cold"]
        assert oracle["logits"] <= 2 * oracle["logits_cold"]
        assert oracle["logits_apart"] > 5 * oracle["logits_cold"]
        assert oracle["rows_apart"] > 2 * oracle["rows_cold"]


@pytest.mark.parametrize("name", WHOLE)
def test_rows_that_lack_a_mention_are_computed_over_what_stands_before_them(name: str) -> None:
    relinked = facts(name)["shifted"]["relinked"]
    assert relinked["wanted"] == relinked["counted"] >= 8
    assert (relinked["missing"], relinked["besides"], relinked["still_moved"]) == ([], [], True)
    for oracle in (relinked["oracle"], relinked["before"]):
        assert oracle["rows"] <= 2 * oracle["rows_cold"]
        assert oracle["logits"] <= 2 * oracle["logits_cold"]


@pytest.mark.parametrize("name", WHOLE)
def test_at_every_shift_turning_beats_leaving_keys_as_they_were(name: str) -> None:
    shifts = facts(name)["shifted"]["shifts"]
    assert set(shifts) == {"1", "-1", "17", "-17", "1000", "-1000"}
    for shift, found in shifts.items():
        assert found["reused"] >= 0.9 * 300, shift
        assert 0 <= found["kl"] < found["kl_not_turned"], shift


@pytest.mark.parametrize("name", WHOLE)
class TestService:
    """Requests as users send them."""

    def test_tenants_never_share_and_one_tenant_does(self, name: str) -> None:
        tenants = facts(name)["service"]["tenants"]
        assert tenants["first"] == tenants["other"] == tenants["none"] == 0
        assert tenants["same"] >= 180
        assert tenants["none_again"] >= 180

    def test_salts_are_told_apart_where_the_engine_has_them(self, name: str) -> None:
        tenants = facts(name)["service"]["tenants"]
        if "salted" not in tenants:
            pytest.skip("this version has no cache_salt of its own")
        assert tenants["salted"] == tenants["salted_joined"] == 0
        assert tenants["salted_same"] >= 180

    @pytest.mark.parametrize("option", ["false", "exact", "nonsense", "unknown_key"])
    def test_opting_out_reuses_nothing(self, name: str, option: str) -> None:
        assert facts(name)["service"]["opt_out"][option]["cached"] == 0

    @pytest.mark.parametrize("option", ["true", "reuse", "absent"])
    def test_reuse_is_the_default(self, name: str, option: str) -> None:
        served = facts(name)["service"]["opt_out"][option]
        assert 180 <= served["cached"] <= served["prompt"] - 1

    def test_the_engine_keeps_serving_when_the_planner_raises(self, name: str) -> None:
        planner = facts(name)["service"]["planner"]
        assert planner["cached"] == 0
        assert planner["tokens_equal"]
        assert planner["failures"] == 1
        assert planner["reused_after"] >= 180
        assert facts(name)["log"].count("planning failed") == 1

    def test_logprobs(self, name: str) -> None:
        logprobs = facts(name)["service"]["logprobs"]
        assert logprobs["output_cached"] >= 180
        assert logprobs["output_count"] == 8
        assert logprobs["prompt_cached"] == 0
        assert logprobs["prompt_count"] == logprobs["prompt_length"]

    def test_documents_in_another_order(self, name: str) -> None:
        order = facts(name)["service"]["order"]
        assert 600 <= order["cached"] < order["prompt"]
        assert order["deltas"] == 4
        assert order["tiles"]
        # What the model ran is what the answer does not call cached: four documents between misses.
        assert order["computed"] == order["prompt"] - order["cached"]

    def test_a_flush_forgets_everything(self, name: str) -> None:
        flush = facts(name)["service"]["flush"]
        assert flush["before"] >= 180
        assert flush["after"] == 0
        assert flush["again"] >= 180

    def test_aborted_requests_leave_the_others_alone(self, name: str) -> None:
        abort = facts(name)["service"]["abort"]
        assert "abort" in abort["ends"]
        assert abort["bystander_equal"]
        assert abort["after"] >= 350


@pytest.mark.parametrize("name", [name for name in ALL if name not in TINY])
def test_an_exact_request_never_decodes_on_approximate_rows(name: str) -> None:
    exact = facts(name)["exact"]
    assert exact["tainted"] >= 180
    assert exact["taint_differs"]
    assert exact["cached"][:2] == [0, 0]
    assert exact["cached"][2] > 250
    assert exact["tokens_equal"]
    assert exact["rows_equal"]


CHUNK64 = [name for name in ALL if "chunk64" in name]


@pytest.mark.parametrize("name", CHUNK64)
class TestBudget:
    """Moved text many times longer than the chunk budget of 64 tokens."""

    def test_a_known_prompt_takes_one_round(self, name: str) -> None:
        budget = facts(name)["budget"]
        alone, *pair = budget["rounds"]
        assert [(one["prefix"], one["reused"], one["computed"]) for one in alone] == [(0, 600, 29)]
        assert [len(rounds) for rounds in pair] == [1, 1]
        assert budget["cached"] == [600, 300, 300]

    def test_no_batch_computes_more_than_the_budget(self, name: str) -> None:
        assert all(count <= 64 for count in facts(name)["budget"]["computed"])

    def test_a_batch_that_cannot_move_its_rows_is_computed_in_parts(self, name: str) -> None:
        late = facts(name)["budget"]["late"]
        assert late == {"cached": 0, "tokens_equal": True, "split_batches": 1}

    def test_an_unknown_prompt_takes_as_many_rounds_as_ever(self, name: str) -> None:
        assert facts(name)["budget"]["cold_rounds"] == 5


@pytest.mark.parametrize("name", CHUNK64)
class TestChain:
    """Ten calls of one session, each over rows that earlier calls moved."""

    def test_every_call_after_the_first_reuses_the_session(self, name: str) -> None:
        calls = facts(name)["chain"]["calls"]
        assert len(calls) == 10
        # A header may happen to begin with the token that another one begins with.
        assert all(call["exact_cached"] < 8 for call in calls)
        assert all(call["cached"] >= 0.6 * call["prompt"] for call in calls[1:])

    def test_answers_do_not_drift_away_from_computing_everything(self, name: str) -> None:
        turns = [call["turn"] for call in facts(name)["chain"]["calls"]]
        # Random weights forget nothing and smooth nothing: an error, but one that does not grow.
        assert turns[0] < 0.02
        assert max(turns[6:]) < 1.5 * max(turns[1:4])

    def test_turns_and_approximations_are_counted_and_bounded(self, name: str) -> None:
        calls = facts(name)["chain"]["calls"]
        assert calls[0]["depth"] == calls[0]["hops"] == 0
        assert all(1 <= call["depth"] <= 10 for call in calls[1:])
        assert all(1 <= call["hops"] <= 10 for call in calls[1:])


@pytest.mark.parametrize("name", TINY)
class TestPressure:
    """A pool far too small for its load."""

    def test_every_answer_came_and_counts_stay_below_the_prompt(self, name: str) -> None:
        storm = facts(name)["pressure"]["storm"]
        assert storm["answers"] + storm["aborted"] >= 18
        assert storm["too_many"] == []
        assert storm["cached"] > storm["prompt"] // 10

    def test_more_was_recorded_than_the_pool_holds(self, name: str) -> None:
        assert facts(name)["counts"]["recorded_tokens"] > 2 * facts(name)["pressure"]["pool"]

    def test_retracted_requests_finish(self, name: str) -> None:
        retraction = facts(name)["pressure"]["retraction"]
        assert retraction["retractions"] > 0
        assert retraction["lengths"] == [100] * 4
        assert all(
            cached < prompt
            for cached, prompt in zip(retraction["cached"], retraction["prompts"], strict=True)
        )


@pytest.mark.parametrize("name", ALL)
class TestNeverStale:
    """Every row that any request of the engine ever held."""

    def test_every_row_belongs_to_its_token_and_position(self, name: str) -> None:
        stale = facts(name)["stale"]
        assert stale["checked"] > 1000
        assert stale["wrong_latent"] == 0
        assert stale["wrong_keys"] == 0

    def test_no_slot_was_read_and_written_or_written_twice(self, name: str) -> None:
        assert facts(name)["stale"]["untouched"] == {"read_and_written": 0, "written_twice": 0}

    def test_nothing_fell_back_unasked(self, name: str) -> None:
        reasons = set(facts(name)["counts"]["fallback"])
        asked = {"exact", "bad_option", "planner", "prompt_logprobs", "batch_prompt_logprobs"}
        assert reasons <= asked


@pytest.mark.parametrize("source", ["disk", "tensor"])
@pytest.mark.parametrize("name", hosts.UPDATED)
def test_new_weights_forget_everything(name: str, source: str) -> None:
    weights = facts(name)["weights"][source]
    assert weights["updated"]
    assert weights["first"] == weights["after"] == 0
    assert min(weights["before"], weights["again"]) >= 180


@pytest.mark.parametrize("version", hosts.ENDS if hosts.EVERYTHING else hosts.ENDS[-1:])
def test_a_refused_engine_does_not_start_and_says_why(version: str) -> None:
    done = hosts.start(version, {"disable_radix_cache": True})
    assert done.returncode != 0
    assert "irminsul cannot serve this engine: --disable-radix-cache leaves no tree" in done.stderr
