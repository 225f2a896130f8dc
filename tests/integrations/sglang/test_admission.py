"""Chunk budget, donor locks and order of admission, on as much of SGLang's adder as is used."""

from __future__ import annotations

import enum
from array import array
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from irminsul import Namespace, Policy, Registry
from irminsul.errors import InvalidSlots
from irminsul.integrations.sglang import admission as admission_module
from irminsul.integrations.sglang.admission import Admission
from irminsul.integrations.sglang.agreement import Agreement
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.mirror import TreeMirror
from irminsul.integrations.sglang.settings import Settings
from irminsul.integrations.sglang.spans import Limits

NAMESPACE = Namespace(model="m")
LIMITS = Limits(rows=16, row_tokens=10**6, min_span=8, positions=10**6)
DOCUMENT = 400


class Result(enum.Enum):
    CONTINUE = 0
    NO_TOKEN = 1
    OTHER = 2


@pytest.fixture(autouse=True)
def _results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_module, "_result", lambda name: Result[name])


def ids(count: int, seed: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(2, 2**31, count)]


class Cache:
    """A tree of one donor, with lock counts and a pool of `free` evictable slots."""

    def __init__(self, document: list[int]) -> None:
        self.metrics = Metrics(60.0)
        self.mirror = TreeMirror(Registry(1 << 16, policy=Policy(min_span=8)), self.metrics)
        tokens = ids(40, 99) + document
        key = SimpleNamespace(token_ids=array("q", tokens))
        self.leaf: Any = _Node(key, torch.arange(len(tokens)))
        self.mirror.record(self.leaf, None, NAMESPACE, [])
        self.locks = 0

    def inc_lock_ref(self, node: Any) -> None:
        assert node is self.leaf
        self.locks += 1

    def dec_lock_ref(self, node: Any) -> None:
        assert node is self.leaf
        self.locks -= 1

    def lookup_namespace(self, request: Any) -> Namespace | None:
        return None if request.exact else NAMESPACE


class _Node:
    def __init__(self, key: Any, value: torch.Tensor) -> None:
        self.key = _Key(key.token_ids)
        self.value = value
        self.parent = None


class _Key:
    def __init__(self, tokens: array[int]) -> None:
        self.token_ids = tokens

    def __len__(self) -> int:
        return len(self.token_ids)

    def raw_token_ids(self) -> array[int]:
        return self.token_ids


class Adder:
    """SGLang's budgets, charged as `PrefillAdder` charges them."""

    def __init__(self, cache: Cache, chunk: int | None, memory: int = 10**6, page: int = 1) -> None:
        self.cache, self.memory, self.page_size = cache, memory, page
        self.rem_chunk_tokens = chunk
        self.rem_input_tokens = 10**6
        self.can_run_list: list[Any] = []
        self.running_batch = SimpleNamespace(reqs=[])
        self.waiting_queue_len = 1
        self.new_chunked_req: Any = None
        self.prefill_delayer_single_pass: Any = None
        self.log_hit_tokens = self.log_input_tokens = self.log_device_hit_tokens = 0
        self.reprocessed_log_hit_tokens = self.reprocessed_log_input_tokens = 0
        self.calls = 0

    @property
    def rem_total_tokens(self) -> int:
        return self.memory - (len(self.cache.leaf.key) if self.cache.locks else 0)

    def ceil_paged_tokens(self, tokens: int) -> int:
        return -(-tokens // self.page_size) * self.page_size

    def budget_state(self) -> Result:
        if self.rem_total_tokens <= 0:
            return Result.NO_TOKEN
        spent = self.rem_chunk_tokens is not None and self.rem_chunk_tokens <= 0
        return Result.OTHER if spent or self.rem_input_tokens <= 0 else Result.CONTINUE

    def admit(self, request: Any, length: int) -> None:
        request.extend_end = request.prefix_len + length
        self.can_run_list.append(request)
        charged = self.ceil_paged_tokens(length)
        self.memory -= charged
        self.rem_input_tokens -= charged
        self.log_input_tokens += charged
        self.reprocessed_log_input_tokens += charged if request.retracted_stain else 0
        if self.rem_chunk_tokens is not None:
            self.rem_chunk_tokens -= charged


def add_one_req(adder: Adder, request: Any) -> Result:
    adder.calls += 1
    left = len(request.full_untruncated_fill_ids) - request.prefix_len
    if left >= adder.rem_total_tokens:
        return Result.NO_TOKEN
    chunk = adder.rem_chunk_tokens
    if chunk is not None and adder.ceil_paged_tokens(left) > chunk:
        left = chunk // adder.page_size * adder.page_size
        if left <= 0:
            return Result.OTHER
        adder.new_chunked_req = request
    adder.admit(request, left)
    return adder.budget_state()


def add_chunked_req(adder: Adder, request: Any) -> Any:
    left = len(request.full_untruncated_fill_ids) - request.prefix_len
    limit = min(adder.rem_chunk_tokens or 0, adder.rem_total_tokens)
    limit = limit if limit > 0 else adder.rem_chunk_tokens or 0
    adder.admit(request, min(left, limit))
    return request if left > limit else None


def request(tokens: list[int], **fields: Any) -> Any:
    given: dict[str, Any] = {
        "rid": "r",
        "full_untruncated_fill_ids": array("q", tokens),
        "origin_input_ids": tokens,
        "prefix_len": 0,
        "exact": False,
        "multimodal_inputs": None,
        "input_embeds": None,
        "positional_embed_overrides": None,
        "return_hidden_states": False,
        "return_logprob": False,
        "retracted_stain": False,
        "logprob_start_len": -1,
    }
    return SimpleNamespace(**{**given, **fields})


def moved(document: list[int], seed: int, head: int = 70, tail: int = 20) -> list[int]:
    return ids(head, seed) + document + ids(tail, seed + 1)


def setting(limits: Limits = LIMITS) -> tuple[Cache, Admission, list[int]]:
    document = ids(DOCUMENT, 1)
    cache = Cache(document)
    made: Any = cache
    return (
        cache,
        Admission(made, limits, Settings(), cache.metrics, Agreement.alone()),
        document,
    )


def batch_of(requests: list[Any]) -> Any:
    return SimpleNamespace(
        reqs=requests,
        prefix_lens=[one.prefix_len for one in requests],
        extend_lens=[one.extend_end - one.prefix_len for one in requests],
    )


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


def burst(clients: int, gap: float = 60.0) -> tuple[Admission, list[int], Any]:
    """Return an admission that has just seen `clients` at once, and what makes an adder."""
    document = ids(DOCUMENT, 1)
    cache = Cache(document)
    made: Any = cache
    settings_ = Settings(gather=gap)
    admission = Admission(made, LIMITS, settings_, cache.metrics, Agreement.alone())

    def adder(waiting: int) -> Adder:
        one = Adder(cache, 256)
        one.waiting_queue_len = waiting
        return one

    first = adder(1)
    decoding = SimpleNamespace(finished=lambda: False)
    ended = SimpleNamespace(finished=lambda: True)
    first.running_batch = SimpleNamespace(reqs=[decoding] * (clients - 1) + [ended])
    admission.add_one(add_one_req, first, request(moved(document, 2)))
    admission.release()
    return admission, document, adder


def test_a_known_prompt_waits_for_the_clients_seen_last() -> None:
    admission, document, adder = burst(3)
    one, two, three = (request(moved(document, seed)) for seed in (10, 20, 30))
    assert admission.add_one(add_one_req, first := adder(1), one) is Result.CONTINUE
    assert not first.can_run_list
    assert not first.calls
    second = adder(2)
    for waiting in (one, two):
        assert admission.add_one(add_one_req, second, waiting) is Result.CONTINUE
        assert waiting.irm_found.spans, "a request that waits is planned meanwhile"
    assert not second.can_run_list
    third = adder(3)
    for waiting in (one, two, three):
        admission.add_one(add_one_req, third, waiting)
    assert third.can_run_list == [one, two, three]


def test_what_has_to_be_computed_waits_for_nobody() -> None:
    admission, document, adder = burst(3)
    cold = request(ids(500, 77))
    admission.add_one(add_one_req, first := adder(1), cold)
    assert first.can_run_list == [cold]
    mostly = request(moved(document, 10, head=1100))
    admission.add_one(add_one_req, second := adder(1), mostly)
    assert second.can_run_list == [mostly]


def test_nobody_waits_while_others_decode() -> None:
    """The scheduler comes by once in a step, which may take longer than any gap."""
    admission, document, adder = burst(3)
    one = request(moved(document, 10))
    first = adder(1)
    first.running_batch = SimpleNamespace(reqs=[SimpleNamespace(finished=lambda: False)])
    admission.add_one(add_one_req, first, one)
    assert first.can_run_list == [one]


def test_a_burst_that_never_comes_is_not_waited_for() -> None:
    admission, document, adder = burst(3, gap=1e-9)
    one = request(moved(document, 10))
    results = [admission.add_one(add_one_req, last := adder(1), one) for _ in range(2)]
    assert last.can_run_list == [one], results


def test_a_single_client_never_waits() -> None:
    admission, document, adder = burst(1)
    one = request(moved(document, 10))
    admission.add_one(add_one_req, first := adder(1), one)
    assert first.can_run_list == [one]


def test_ranks_wait_for_nobody() -> None:
    """Their clocks differ, and they have to admit the same requests."""
    admission, document, adder = burst(3)
    admission._gathering = Admission(
        admission._cache,
        LIMITS,
        Settings(gather=60.0),
        Metrics(60.0),
        TwoRanks(),  # type: ignore[arg-type]
    )._gathering
    admission._gathering.saw(3)
    admission.add_one(add_one_req, first := adder(1), one := request(moved(document, 10)))
    assert first.can_run_list == [one]


class TwoRanks:
    ranks = 2


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

    monkeypatch.setattr(admission_module, "check_relocations", refused)
    one = request(moved(document, 5))
    admission.add_one(add_one_req, Adder(cache, 128), one)
    assert one.extend_end == 128
    assert cache.mirror.broken
    assert cache.mirror.registry.stats()["nodes"] == 0
    assert cache.metrics.fallbacks["relocation"] == 1
