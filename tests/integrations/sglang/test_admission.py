"""Chunk budget, donor locks and order of admission, on as much of SGLang's adder as is used."""

from __future__ import annotations

from typing import Any

import pytest
from adders import (
    DOCUMENT,
    LIMITS,
    Adder,
    Cache,
    Result,
    add_chunked_req,
    add_one_req,
    batch_of,
    ids,
    moved,
    request,
    setting,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from irminsul import rotation
from irminsul.errors import InvalidSlots
from irminsul.integrations.sglang.admission import adder as admission_module
from irminsul.integrations.sglang.admission.adder import Admission
from irminsul.integrations.sglang.agreement import Agreement
from irminsul.integrations.sglang.settings import Settings
from irminsul.integrations.sglang.spans import Limits


@pytest.fixture(autouse=True)
def _results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_module, "_result", lambda name: Result[name])


@pytest.mark.parametrize("page", [1, 64])
@pytest.mark.parametrize("chunk", [128, 192, 256])
def test_a_known_prompt_longer_than_the_budget_takes_one_round(chunk: int, page: int) -> None:
    cache, admission, document = setting()
    adder = Adder(cache, chunk, page=page)
    one = request(moved(document, 5))
    admission.add_one(add_one_req, adder, one)
    assert one.extend_end == 490
    window = admission.take(batch_of([one]))[0]
    assert window.reused == DOCUMENT
    spent = chunk - (adder.rem_chunk_tokens or 0)
    assert 90 <= spent < 90 + page
    assert (adder.log_hit_tokens, adder.log_input_tokens - spent) == (DOCUMENT, 0)
    assert cache.locks == 1
    admission.release()
    assert cache.locks == 0


@pytest.mark.parametrize("retracted", [False, True])
def test_moved_tokens_are_hits_in_the_hit_rate_of_sglang(retracted: bool) -> None:
    _, admission, document = setting()
    adder = Adder(Cache(document), 256)
    admission.add_one(add_one_req, adder, request(moved(document, 5), retracted_stain=retracted))
    hits = adder.log_hit_tokens - adder.reprocessed_log_hit_tokens
    inputs = adder.log_input_tokens - adder.reprocessed_log_input_tokens
    assert (hits, inputs) == ((0, 0) if retracted else (DOCUMENT, 90))
    assert adder.log_device_hit_tokens == hits


@settings(max_examples=60)
@given(
    st.integers(1, 600),
    st.integers(0, 200),
    st.integers(1, 200),
    st.sampled_from([1, 16, 64]),
)
def test_a_round_computes_no_more_than_the_chunk_budget(
    chunk: int, head: int, tail: int, page: int
) -> None:
    chunk = -(-chunk // page) * page
    cache, admission, document = setting()
    adder = Adder(cache, chunk, page=page)
    one = request(moved(document, 5, head, tail))
    admission.add_one(add_one_req, adder, one)
    window = admission.take(batch_of([one]))[0]
    computed = one.extend_end - window.reused
    assert computed <= chunk
    assert 0 <= chunk - computed - (adder.rem_chunk_tokens or 0) < page
    total = len(one.full_untruncated_fill_ids)
    assert one.extend_end == total or computed > chunk - page - LIMITS.min_span
    admission.release()


def test_rounds_of_a_long_prompt_go_on_where_the_last_ended() -> None:
    cache, admission, document = setting()
    one = request(moved(document, 5, head=300, tail=500))
    ends, chunk = [], 128
    again: Any = one
    admission.add_one(add_one_req, Adder(cache, chunk), one)
    while True:
        window = admission.take(batch_of([one]))[0]
        assert one.extend_end - window.start - window.reused <= chunk
        ends.append(one.extend_end)
        admission.release()
        one.prefix_len = one.extend_end
        if one.extend_end == 1200:
            break
        again = admission.add_chunked(add_chunked_req, Adder(cache, chunk), one)
        assert (again is None) == (one.extend_end == 1200)
    assert ends == [128, 256, 784, 912, 1040, 1168, 1200]
    assert cache.locks == 0


def test_a_request_that_the_round_cuts_is_the_last_of_its_batch() -> None:
    """A page may be left of the budget, and a prompt that begins with a span needs less."""
    cache, admission, document = setting()
    adder = Adder(cache, 128, page=64)
    long = request(moved(document, 3, tail=300))
    admission.add_one(add_one_req, adder, long)
    assert long.extend_end < len(long.full_untruncated_fill_ids)
    assert adder.rem_chunk_tokens, "something is left, as in SGLang it never is"
    other = request(moved(document, 5, head=40, tail=300), prefix_len=40)
    assert admission.add_one(add_one_req, adder, other) is Result.OTHER
    assert adder.can_run_list == [long]
    assert adder.new_chunked_req is long


def test_nobody_follows_a_long_prompt_that_goes_on() -> None:
    cache, admission, document = setting()
    adder = Adder(cache, 128, page=64)
    long = request(moved(document, 3, tail=900))
    assert admission.add_chunked(add_chunked_req, adder, long) is long
    adder.rem_chunk_tokens = 40
    other = request(moved(document, 5, head=40, tail=300), prefix_len=40)
    assert admission.add_one(add_one_req, adder, other) is Result.OTHER
    assert adder.can_run_list == [long]


def test_short_prompts_follow_a_long_one_that_is_cut_on_purpose() -> None:
    """Shortest prefill first leaves a part of the budget to prompts that fit into it."""
    cache, admission, document = setting()
    adder = Adder(cache, 256)
    adder.chunked_req_limit = 136

    def cut(adder: Adder, request: Any) -> Any:
        adder.admit(request, min(adder.chunked_req_limit, adder.rem_chunk_tokens or 0))
        return request

    long = request(moved(document, 3, tail=900))
    assert admission.add_chunked(cut, adder, long) is long
    shorts = [request(ids(30, seed)) for seed in range(20, 24)]
    for short in shorts:
        admission.add_one(add_one_req, adder, short)
    assert adder.can_run_list == [long, *shorts]


def test_a_long_prompt_that_finds_no_room_locks_nothing() -> None:
    cache, admission, document = setting()
    adder = Adder(cache, 128)
    long = request(moved(document, 3, tail=900))
    assert admission.add_chunked(lambda adder, request: request, adder, long) is long
    assert cache.locks == 0
    other = request(moved(document, 5))
    admission.add_one(add_one_req, adder, other)
    assert adder.can_run_list == [other]


def test_a_long_round_is_never_forced_into_a_full_pool() -> None:
    cache, admission, document = setting()
    one = request(moved(document, 5))
    adder = Adder(cache, 100, memory=300)
    assert admission.add_chunked(add_chunked_req, adder, one) is one
    assert one.extend_end == 100
    assert cache.locks == 0


def test_a_request_that_only_its_donors_keep_out_is_admitted_without_them() -> None:
    cache, admission, document = setting()
    adder = Adder(cache, 128, memory=600)
    one = request(moved(document, 5))
    assert admission.add_one(add_one_req, adder, one) is Result.OTHER
    assert one.extend_end == 128
    assert adder.calls == 2
    assert adder.rem_chunk_tokens == 0
    assert cache.locks == 0


def test_a_pool_full_of_locked_donors_is_not_called_full() -> None:
    cache, admission, document = setting()
    adder = Adder(cache, 1000, memory=1000)
    admission.add_one(add_one_req, adder, request(moved(document, 5)))
    assert admission.add_one(add_one_req, adder, request(moved(document, 7))) is Result.OTHER
    assert len(adder.can_run_list) == 1
    admission.release()
    assert cache.locks == 0
    later = Adder(cache, 1000, memory=adder.memory)
    admission.add_one(add_one_req, later, request(moved(document, 7)))
    assert len(later.can_run_list) == 1


def test_a_refused_request_leaves_budget_and_locks_as_they_were() -> None:
    cache, admission, document = setting()
    adder = Adder(cache, 0)
    assert admission.add_one(add_one_req, adder, request(moved(document, 5, head=0)))
    assert (adder.rem_chunk_tokens, adder.rem_input_tokens) == (0, 10**6)
    assert cache.locks == 0


def test_what_the_scheduler_raises_leaves_budget_and_locks_as_they_were() -> None:
    cache, admission, document = setting()
    adder = Adder(cache, 100)

    def fails(adder: Any, request: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        admission.add_one(fails, adder, request(moved(document, 5)))
    assert (adder.rem_chunk_tokens, adder.rem_input_tokens) == (100, 10**6)
    admission.release()
    assert cache.locks == 0


def test_a_request_that_would_undo_the_plans_waits_for_the_next_batch() -> None:
    cache, admission, document = setting()
    adder = Adder(cache, 2000)
    whole = request(ids(50, 9), return_logprob=True, logprob_start_len=0, exact=True)
    admission.add_one(add_one_req, adder, request(moved(document, 5)))
    assert admission.add_one(add_one_req, adder, whole) is Result.OTHER
    adder = Adder(cache, 2000)
    assert admission.add_one(add_one_req, adder, whole) is Result.CONTINUE
    beside = request(moved(document, 5))
    admission.add_one(add_one_req, adder, beside)
    assert [window.reused for window in admission.take(batch_of(adder.can_run_list))] == [0, 0]


def test_requests_that_share_a_batch_share_its_rows() -> None:
    limits = Limits(rows=5, row_tokens=10**6, min_span=8, positions=10**6)
    cache, admission, document = setting(limits)
    adder = Adder(cache, 10_000)
    for number in range(4):
        admission.add_one(add_one_req, adder, request(moved(document, 20 + 2 * number)))
    windows = admission.take(batch_of(adder.can_run_list))
    assert [window.reused for window in windows] == [DOCUMENT, DOCUMENT, 0]
    assert sum(len(window.holes()) for window in windows) == 5
    assert cache.locks == 2
    admission.release()


def test_a_chunk_budget_switched_off_still_spares_the_input_budget() -> None:
    cache, admission, document = setting()
    adder = Adder(cache, None)
    admission.add_one(add_one_req, adder, request(moved(document, 5)))
    assert adder.rem_input_tokens == 10**6 - 90


def test_a_failure_to_plan_is_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, admission, document = setting()

    def fails(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(admission_module.finding, "find_spans", fails)
    adder = Adder(cache, 128)
    one = request(moved(document, 5))
    admission.add_one(add_one_req, adder, one)
    assert one.extend_end == 128
    assert cache.metrics.fallbacks["planner"] == 1


def test_ranks_that_disagree_compute() -> None:
    cache, _, document = setting()

    class Apart(Agreement):
        @property
        def ranks(self) -> int:
            return 2

        def agree(self, digest: int) -> bool:
            return digest == 0

    made: Any = cache
    admission = Admission(made, LIMITS, Settings(), cache.metrics, Apart())
    one = request(moved(document, 5))
    admission.add_one(add_one_req, Adder(cache, 128), one)
    assert one.extend_end == 128
    assert cache.metrics.fallbacks["ranks_disagree"] == 1


def test_rows_that_a_gpu_refused_to_move_end_reuse(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, admission, document = setting()

    def refused(*, wait: bool) -> None:
        raise InvalidSlots("an earlier relocate_rows wrote nothing: source slot 99")

    monkeypatch.setattr(rotation, "check_relocations", refused)
    one = request(moved(document, 5))
    admission.add_one(add_one_req, Adder(cache, 128), one)
    assert one.extend_end == 128
    assert cache.mirror.broken
    assert cache.mirror.registry.stats()["nodes"] == 0
    assert cache.metrics.fallbacks["relocation"] == 1
