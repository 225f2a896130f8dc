"""Requests wait for what is coming, others pass them, and nothing is lost from the queue."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the plugin's files import torch")

from irminsul import Namespace, Registry
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.tiers.queue import FetchQueue, prompt

NAMESPACE = Namespace(model="m")


class Coming:
    def __init__(self) -> None:
        self.done = False


class Chunks:
    """Stands for a pool: notes what was asked for."""

    def __init__(self, remote: str | None = "store") -> None:
        self.remote = remote
        self.asked: list[Any] = []
        self.admitted: list[Any] = []
        self.answer: Coming | None = Coming()

    def prefetch(self, namespace: Namespace, tokens: Any, holes: Any, patience: float) -> Any:
        self.asked.append((namespace, tokens, holes, patience))
        return self.answer

    def admit(self, prefetch: Any) -> None:
        self.admitted.append(prefetch)


def _request(ids: list[int]) -> Any:
    return SimpleNamespace(origin_input_ids=ids, output_ids=[])


def _queue(
    chunks: Any, local: Namespace | None = NAMESPACE, *, together: bool = False
) -> tuple[FetchQueue, Registry]:
    registry = Registry(1 << 16)
    cache = SimpleNamespace(
        lookup_namespace=lambda request: local, mirror=SimpleNamespace(registry=registry)
    )
    return FetchQueue(chunks, cache, Metrics(60.0), 0.05, together=together), registry


def _pass_by(queue: FetchQueue, choose: Any, scheduler: Any, **kw: Any) -> Any:
    """Call it as one rank alone does."""
    waiting = queue.waiting(scheduler.waiting_queue)
    ready = [queue.ready(request) for request in waiting]
    return queue.pass_by(waiting, ready, choose, scheduler, **kw)


def test_only_what_the_engine_lacks_is_asked_for() -> None:
    chunks = Chunks()
    queue, registry = _queue(chunks)
    known = np.random.default_rng(0).integers(0, 1000, 600).tolist()
    registry.record(known, 1, namespace=NAMESPACE, base_position=100)
    request = _request([*range(5000, 5040), *known, *range(7000, 7300)])
    queue.enter(request, lambda _: Namespace(model="digest"))
    ((namespace, tokens, holes, patience),) = chunks.asked
    assert namespace == Namespace(model="digest")
    assert np.array_equal(tokens, prompt(request))
    assert patience == 0.05
    assert holes[0][0] == 0
    assert holes[-1] == (640, 940)
    assert sum(end - start for start, end in holes) < 400


def test_exact_requests_ask_for_nothing() -> None:
    chunks = Chunks()
    queue, _ = _queue(chunks, local=None)
    queue.enter(_request([1] * 300), lambda _: NAMESPACE)
    assert chunks.asked == []


def test_without_a_store_nothing_is_looked_up() -> None:
    queue, registry = _queue(Chunks(remote=None))
    request = _request([1] * 300)
    before = registry.stats()["lookups"]
    queue.enter(request, lambda _: NAMESPACE)
    assert request.irm_prefetch is None
    assert registry.stats()["lookups"] == before


def test_a_failure_is_a_miss() -> None:
    queue, _ = _queue(None)
    request = _request([1] * 300)
    queue.enter(request, lambda _: NAMESPACE)
    assert getattr(request, "irm_prefetch", None) is None
    assert queue._metrics.fallbacks["tier_fetch"] == 1


def test_others_pass_those_who_wait() -> None:
    chunks = Chunks()
    queue, _ = _queue(chunks)
    requests = [_request([number] * 300) for number in range(4)]
    coming = []
    for number, request in enumerate(requests):
        chunks.answer = Coming() if number in (0, 2) else None
        coming.append(chunks.answer)
        queue.enter(request, lambda _: NAMESPACE)
    late = _request([9] * 300)
    scheduler = SimpleNamespace(waiting_queue=list(requests))
    seen: list[list[Any]] = []

    def choose(scheduler: Any, **kw: Any) -> str:
        seen.append(list(scheduler.waiting_queue))
        assert kw == {"batch": 1}
        # It admits the first, and a grammar becomes ready and enters the queue.
        scheduler.waiting_queue = [*scheduler.waiting_queue[1:], late]
        return "batch"

    assert _pass_by(queue, choose, scheduler, batch=1) == "batch"
    assert seen == [[requests[1], requests[3]]]
    assert scheduler.waiting_queue == [requests[0], requests[2], requests[3], late]
    first = coming[0]
    assert first is not None
    first.done = True
    _pass_by(queue, choose, scheduler, batch=1)
    assert seen[1] == [requests[0], requests[3], late]
    assert scheduler.waiting_queue[0] is requests[2]
    assert chunks.admitted == [first]
    assert queue._metrics.counts["tier_held_requests"] == 1


def test_the_queue_is_whole_after_an_error() -> None:
    chunks = Chunks()
    queue, _ = _queue(chunks)
    requests = [_request([number] * 300) for number in range(2)]
    queue.enter(requests[0], lambda _: NAMESPACE)
    scheduler = SimpleNamespace(waiting_queue=list(requests))

    def fail(scheduler: Any) -> None:
        raise RuntimeError("no batch")

    with pytest.raises(RuntimeError, match="no batch"):
        _pass_by(queue, fail, scheduler)
    assert scheduler.waiting_queue == requests


def test_a_request_enters_once() -> None:
    chunks = Chunks()
    queue, _ = _queue(chunks)
    request = _request([1] * 300)
    queue.enter(request, lambda _: NAMESPACE)
    queue.enter(request, lambda _: NAMESPACE)
    assert len(chunks.asked) == 1


def test_ranks_let_go_of_the_same_requests() -> None:
    """One rank has nothing to fetch for a request, the other waits for it: both keep it back."""
    ranks = []
    for coming in (Coming(), None):
        chunks = Chunks()
        chunks.answer = coming
        queue, _ = _queue(chunks, together=True)
        request = _request([1] * 300)
        queue.enter(request, lambda _: NAMESPACE)
        scheduler = SimpleNamespace(waiting_queue=[request])
        ranks.append((queue, scheduler, coming))
    chosen: list[list[Any]] = []

    def choose(scheduler: Any) -> None:
        chosen.append(list(scheduler.waiting_queue))

    def round_of_all() -> None:
        waiting = [queue.waiting(scheduler.waiting_queue) for queue, scheduler, _ in ranks]
        assert [len(found) for found in waiting] == [1, 1]
        votes = [
            [queue.ready(found[0])] for (queue, _, _), found in zip(ranks, waiting, strict=True)
        ]
        least = [min(vote[0] for vote in votes)]
        for (queue, scheduler, _), found in zip(ranks, waiting, strict=True):
            queue.pass_by(found, least, choose, scheduler)

    round_of_all()
    assert chosen == [[], []]
    first = ranks[0][2]
    assert first is not None
    first.done = True
    round_of_all()
    assert [len(queue) for queue in chosen[2:]] == [1, 1]
    assert all(not queue.waiting(scheduler.waiting_queue) for queue, scheduler, _ in ranks)


def test_a_request_that_was_let_go_may_enter_again() -> None:
    chunks = Chunks()
    queue, _ = _queue(chunks)
    request = _request([1] * 300)
    scheduler = SimpleNamespace(waiting_queue=[request])
    for _ in range(2):
        queue.enter(request, lambda _: NAMESPACE)
        assert chunks.answer is not None
        chunks.answer.done = True
        _pass_by(queue, lambda scheduler: None, scheduler)
    assert len(chunks.asked) == 2
