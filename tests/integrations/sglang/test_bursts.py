"""Requests of one burst: who waits for whom, and who does not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from adders import (
    DOCUMENT,
    LIMITS,
    Adder,
    Cache,
    Result,
    add_one_req,
    ids,
    moved,
    request,
)
from irminsul.integrations.sglang.admission import adder as admission_module
from irminsul.integrations.sglang.admission.adder import Admission
from irminsul.integrations.sglang.agreement import Agreement
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.settings import Settings


@pytest.fixture(autouse=True)
def _results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_module, "_result", lambda name: Result[name])


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
