"""The registry: what is found, what is never found, eviction, pins, and refusals."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from typing import Any

import irminsul
import numpy as np
import pytest
from irminsul import Namespace, Policy, Registry
from irminsul.errors import (
    DuplicateNode,
    InvalidParams,
    InvalidTokens,
    IrminsulError,
    RegistryFull,
    UnknownNode,
)
from reference.registry import Model, Node, check_plan


def text(seed: int, count: int, below: int = 129_280) -> list[int]:
    return np.random.default_rng(seed).integers(0, below, count).tolist()


@pytest.fixture
def namespace() -> Namespace:
    return Namespace(model="test")


def test_moved_text_is_found_but_for_sink_and_last_token(namespace: Namespace) -> None:
    registry = Registry(1 << 20)
    document = text(1, 5000)
    registry.add(1, None, document, namespace=namespace)
    for shift in (1, 17, 500):
        plan = registry.lookup(text(2, shift) + document, namespace=namespace)
        assert plan.reused_tokens == 5000 - 32 - 1
        assert [type(s).__name__ for s in plan.segments] == ["Compute", "Reuse", "Compute"]
        assert plan.segments[1].delta == shift


def test_the_same_prompt_is_reused_at_delta_zero_from_the_sink_on(namespace: Namespace) -> None:
    registry = Registry(1 << 20)
    document = text(1, 1000)
    registry.add(1, None, document, namespace=namespace)
    (_, reuse, last) = registry.lookup(document, namespace=namespace).segments
    assert (reuse.target, reuse.source, reuse.delta) == (32, 32, 0)
    assert (last.start, last.end) == (999, 1000)


def test_cuts_do_not_depend_on_how_a_path_is_divided(namespace: Namespace) -> None:
    """A path added in pieces is found as if it had been added at once, however small the pieces."""
    document = text(3, 3000)
    for size in (1, 16, 100):
        registry = Registry(1 << 20)
        for node, at in enumerate(range(0, 3000, size)):
            registry.add(
                node,
                node - 1 if node else None,
                document[at : at + size],
                namespace=namespace,
                base_position=at,
            )
        plan = registry.lookup(text(4, 100) + document + text(5, 100), namespace=namespace)
        assert plan.reused_tokens == 3000 - 32
        pieces = plan.segments[1].pieces
        assert sum(piece.length for piece in pieces) == 3000 - 32


def test_a_position_jump_ends_a_span(namespace: Namespace) -> None:
    registry = Registry(1 << 20)
    document = text(6, 2000)
    registry.add(1, None, document[:1000], namespace=namespace)
    registry.add(2, 1, document[1000:], namespace=namespace, base_position=1500)
    plan = registry.lookup(text(7, 50) + document + [1], namespace=namespace)
    spans = [s for s in plan.segments if isinstance(s, irminsul.Reuse)]
    assert [span.delta for span in spans] == [50, -450]


def test_a_child_begins_where_its_parent_ends_unless_the_host_says_otherwise(
    namespace: Namespace,
) -> None:
    registry = Registry(1 << 20)
    document = text(6, 2000)
    registry.add(1, None, document[:500], namespace=namespace, base_position=70)
    registry.add(2, 1, document[500:1000], namespace=namespace)
    registry.split(2, 100, 3)
    registry.add(4, 2, document[1000:], namespace=namespace)
    plan = registry.lookup(text(7, 50) + document + [1], namespace=namespace)
    spans = [s for s in plan.segments if isinstance(s, irminsul.Reuse)]
    assert [(span.delta, span.length) for span in spans] == [(50 - 70, 2000)]
    with pytest.raises(irminsul.errors.UnknownNode):
        registry.add(5, 9, document, namespace=namespace)


def test_namespaces_never_share_and_the_same_one_does() -> None:
    registry = Registry(1 << 20)
    document = text(8, 2000)
    mine, other = Namespace(tenant="mine"), Namespace(tenant="other")
    registry.add(1, None, document, namespace=mine)
    assert registry.lookup(document, namespace=other).reused_tokens == 0
    assert registry.lookup(document, namespace=Namespace(tenant=b"mine")).reused_tokens > 1900
    registry.add(2, None, document, namespace=other)
    for namespace, node in ((mine, 1), (other, 2)):
        plan = registry.lookup([5] * 40 + document, namespace=namespace)
        assert {p.node for s in plan.segments if hasattr(s, "pieces") for p in s.pieces} == {node}


@pytest.mark.parametrize("bits", [0, 1, 8])
def test_colliding_fingerprints_serve_no_other_text(namespace: Namespace, bits: int) -> None:
    registry = Registry(1 << 20, _fingerprint_bits=bits)
    documents = [text(100 + i, 1500) for i in range(30)]
    model = Model()
    for node, document in enumerate(documents):
        registry.add(node, None, document, namespace=namespace)
        model.add(node, Node(document, None, "", 0))
    for i in range(30):
        prompt = text(200 + i, 80) + documents[i][100:900] + text(300 + i, 400)
        plan = registry.lookup(prompt, namespace=namespace)
        check_plan(plan, prompt, 0, "", model, registry.policy)


def test_donors_with_less_approximation_then_fewer_rotations_then_newer_come_first(
    namespace: Namespace,
) -> None:
    registry = Registry(1 << 20)
    document = text(9, 1000)
    grades = [(1, 0), (0, 2), (0, 1), (0, 1)]  # (depth, hops)
    for node, (depth, hops) in enumerate(grades):
        registry.add(node, None, document, namespace=namespace, depth=depth, hops=hops)
    prompt = [1, 2, 3, *document]

    def donor() -> int:
        return registry.lookup(prompt, namespace=namespace).segments[1].pieces[0].node

    for expected in (3, 2, 1, 0):
        assert donor() == expected
        registry.remove(expected)


def test_rows_rotated_or_approximated_too_often_are_not_reused(namespace: Namespace) -> None:
    registry = Registry(1 << 20, policy=Policy(max_hops=2, max_depth=3))
    for node, (hops, depth) in enumerate([(3, 0), (0, 4)]):
        registry.add(node, None, text(node, 600), namespace=namespace, hops=hops, depth=depth)
        assert registry.lookup([1, *text(node, 600)], namespace=namespace).reused_tokens == 0
    registry.add(9, None, text(9, 600), namespace=namespace, hops=2, depth=3)
    (_, reuse, _) = registry.lookup([1, *text(9, 600)], namespace=namespace).segments
    assert (reuse.hops, reuse.depth) == (2, 3)


def test_head_of_every_span_is_computed_again(namespace: Namespace) -> None:
    registry = Registry(1 << 20, policy=Policy(recompute_head=20))
    document = text(10, 1000)
    registry.add(1, None, document, namespace=namespace)
    (_, reuse, _) = registry.lookup([1] * 100 + document, namespace=namespace).segments
    assert reuse.target == 100 + 32 + 20


def test_only_the_longest_spans_are_kept(namespace: Namespace) -> None:
    registry = Registry(1 << 20, policy=Policy(max_segments=2))
    documents = [text(20 + i, 400 + 200 * i) for i in range(4)]
    for node, document in enumerate(documents):
        registry.add(node, None, document, namespace=namespace)
    prompt = [token for i, d in enumerate(documents) for token in [*text(40 + i, 50), *d]]
    plan = registry.lookup(prompt, namespace=namespace)
    spans = [s for s in plan.segments if isinstance(s, irminsul.Reuse)]
    assert [span.pieces[0].node for span in spans] == [2, 3]


def test_a_removed_node_leaves_the_rest_of_a_span(namespace: Namespace) -> None:
    registry = Registry(1 << 20)
    document = text(11, 3000)
    registry.add(1, None, document, namespace=namespace)
    plan = registry.lookup([9] * 10 + document, namespace=namespace)
    assert plan.revalidate()
    registry.split(1, 1000, 2)
    registry.split(1, 1000, 3)
    assert not plan.revalidate()
    assert [p.node for p in plan.segments[1].pieces] == [2, 3, 1]
    registry.remove(3)
    assert not plan.revalidate()
    kinds = [type(s).__name__ for s in plan.segments]
    assert kinds == ["Compute", "Reuse", "Compute", "Reuse", "Compute"]
    assert (plan.segments[2].start, plan.segments[2].end) == (1010, 2010)
    registry.clear()
    assert not plan.revalidate()
    assert plan.reused_tokens == 0


def test_ids_given_again_do_not_revive_old_plans(namespace: Namespace) -> None:
    registry = Registry(1 << 20)
    registry.add(1, None, text(12, 1000), namespace=namespace)
    plan = registry.lookup([3, *text(12, 1000)], namespace=namespace)
    for wipe in (lambda: registry.remove(1), registry.clear):
        wipe()
        registry.add(1, None, text(13, 1000), namespace=namespace)
    assert not plan.revalidate()
    assert plan.reused_tokens == 0


def test_least_recently_used_leaves_are_evicted_and_pins_hold(namespace: Namespace) -> None:
    registry = Registry(3000)
    for node in range(3):
        registry.add(node, None, text(node, 1000), namespace=namespace)
    with registry.lookup([5, *text(0, 1000)], namespace=namespace) as plan:
        assert plan.reused_tokens > 900
        registry.add(3, None, text(3, 1000), namespace=namespace)
        assert [n in registry for n in range(4)] == [True, False, True, True]
        registry.add(4, None, text(4, 2000), namespace=namespace)
        assert [n in registry for n in range(5)] == [True, False, False, False, True]
        with pytest.raises(RegistryFull):
            registry.add(5, None, text(5, 2001), namespace=namespace)
        assert plan.revalidate()
    registry.add(5, None, text(5, 2001), namespace=namespace)
    assert 0 not in registry
    with pytest.raises(RegistryFull, match="3001 tokens do not fit"):
        registry.add(6, None, text(6, 3001), namespace=namespace)


def test_removal_succeeds_while_a_plan_pins_the_node(namespace: Namespace) -> None:
    registry = Registry(3000)
    registry.add(1, None, text(1, 1000), namespace=namespace)
    with registry.lookup([5, *text(1, 1000)], namespace=namespace) as plan:
        registry.remove(1)
        assert registry.stats()["resident_tokens"] == 0
        assert not plan.revalidate()


def test_refused_operations_change_nothing(namespace: Namespace) -> None:
    registry = Registry(1 << 20)
    registry.add(1, None, text(1, 100), namespace=namespace)
    before = registry.stats()
    refused: list[tuple[Any, type[IrminsulError]]] = [
        (lambda: registry.add(1, None, [1], namespace=namespace), DuplicateNode),
        (lambda: registry.add(2, 3, [1], namespace=namespace), UnknownNode),
        (lambda: registry.add(2, 1, [1], namespace=Namespace(tenant="x")), InvalidParams),
        (lambda: registry.add(2, None, [], namespace=namespace), InvalidTokens),
        (lambda: registry.add(-1, None, [1], namespace=namespace), InvalidParams),
        (lambda: registry.add(2**64, None, [1], namespace=namespace), InvalidParams),
        (lambda: registry.add(2, None, [1], namespace=namespace, hops=-1), InvalidParams),
        (
            lambda: registry.add(2, None, [1], namespace=namespace, base_position=2**63),
            InvalidParams,
        ),
        (lambda: registry.split(1, 0, 2), InvalidParams),
        (lambda: registry.split(1, 100, 2), InvalidParams),
        (lambda: registry.split(1, -1, 2), InvalidParams),
        (lambda: registry.split(1, 5, 1), DuplicateNode),
        (lambda: registry.split(7, 5, 2), UnknownNode),
        (lambda: registry.remove(7), UnknownNode),
        (lambda: registry.lookup([1, 2], namespace=namespace, prefix_len=3), InvalidParams),
        (lambda: registry.lookup([1.5], namespace=namespace), InvalidTokens),
    ]
    for call, error in refused:
        with pytest.raises(error):
            call()
    assert registry.discard(7) is False
    assert registry.stats() == before


def test_errors_are_the_builtin_kinds_too() -> None:
    with pytest.raises(KeyError, match=r"^no live node 5"):
        Registry(10).remove(5)
    with pytest.raises(ValueError, match="capacity_tokens is 0; allowed: 1 to"):
        Registry(0)
    with pytest.raises(RuntimeError):
        Registry(10).add(1, None, list(range(11)), namespace=Namespace())


def test_the_process_wide_registry(namespace: Namespace) -> None:
    document = text(50, 600)
    irminsul.record(document, 2**64 - 1, namespace=namespace)
    plan = irminsul.lookup([4, *document], namespace=namespace)
    assert plan.segments[1].pieces[0].node == 2**64 - 1
    assert irminsul.lookup([4, *document]).reused_tokens == 0
    assert irminsul.default_registry().discard(2**64 - 1)


def test_many_threads_see_whole_operations(namespace: Namespace) -> None:
    """Readers, writers and removers at once; every plan must be right for its own text."""
    registry = Registry(60_000)
    documents = [text(60 + i, 9000) for i in range(8)]
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for step in range(60):
                node = rng.randrange(8)
                if rng.random() < 0.3:
                    registry.discard(node)
                elif rng.random() < 0.4 and node not in registry:
                    with contextlib.suppress(DuplicateNode, RegistryFull):
                        registry.add(node, None, documents[node], namespace=namespace)
                else:
                    prompt = text(step, 30) + documents[node]
                    with registry.lookup(prompt, namespace=namespace) as plan:
                        for reuse in plan.segments:
                            if isinstance(reuse, irminsul.Reuse):
                                assert {p.node for p in reuse.pieces} == {node}
                                assert reuse.delta == 30
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_waiting_for_another_threads_work_stops_nobody_else(namespace: Namespace) -> None:
    """A short call behind a long one gives the interpreter lock away while it waits."""
    registry = Registry(1 << 20)
    for node in range(200_000):
        registry.add(node, None, [node], namespace=namespace)
    done = threading.Event()
    ticks: list[float] = []

    def tick() -> None:
        while not done.wait(0.001):
            ticks.append(time.perf_counter())

    ticker = threading.Thread(target=tick)
    forgetter = threading.Thread(target=registry.forget, args=(namespace,))
    ticker.start()
    forgetter.start()
    waits = []
    while forgetter.is_alive():
        before = time.perf_counter()
        assert isinstance(199_999 in registry, bool)
        waits.append((before, time.perf_counter()))
    forgetter.join()
    done.set()
    ticker.join()
    for before, after in waits:
        assert after - before < 0.05 or any(before < at < after for at in ticks)
