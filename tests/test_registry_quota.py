"""Quotas: each tenant is held to its own limits, and pays with its own nodes."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from irminsul import Namespace, Quota, Registry
from irminsul.errors import InvalidParams, QuotaExceeded, RegistryFull

A, B = Namespace(tenant="a"), Namespace(tenant="b")


def text(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 129_280, count).tolist()


def fill(registry: Registry, namespace: Namespace, nodes: range, length: int = 1000) -> list[int]:
    for node in nodes:
        registry.add(node, None, text(node, length), namespace=namespace)
    return [node for node in nodes if node in registry]


def test_a_tenant_evicts_its_own_oldest_nodes_only() -> None:
    registry = Registry(1 << 20)
    registry.set_quota(Quota(tokens=3000), tenant="a")
    others = fill(registry, B, range(100, 110))
    assert fill(registry, A, range(3)) == [0, 1, 2]
    registry.lookup(text(0, 1000), namespace=A).release()
    registry.add(3, None, text(3, 1000), namespace=A)
    assert 0 in registry
    assert 1 not in registry
    assert 3 in registry
    assert all(node in registry for node in others)
    assert registry.usage("a")["tokens"] <= 3000
    assert registry.usage(b"b") == {**registry.usage("b"), "nodes": 10, "tokens": 10_000}


def test_all_namespaces_of_a_tenant_count_together() -> None:
    registry = Registry(1 << 20)
    registry.set_quota(Quota(tokens=1500))
    one, two = Namespace(model="1", tenant="a"), Namespace(model="2", tenant="a")
    registry.add(1, None, text(1, 1000), namespace=one)
    registry.add(2, None, text(2, 1000), namespace=two)
    assert 1 not in registry
    assert registry.usage("a")["nodes"] == 1
    registry.add(3, None, text(3, 1500), namespace=B)
    assert registry.usage("b")["tokens"] == 1500


def test_what_never_fits_is_refused_before_anything_goes() -> None:
    registry = Registry(1 << 20)
    registry.set_quota(Quota(tokens=2000), tenant="a")
    fill(registry, A, range(2))
    with pytest.raises(QuotaExceeded, match='tenant "a" has 2000 of 2000 tokens and needs 2001'):
        registry.add(5, None, text(5, 2001), namespace=A)
    assert 0 in registry
    assert 1 in registry
    assert issubclass(QuotaExceeded, RegistryFull)


def test_a_pinned_node_is_not_evicted_for_its_tenant_either() -> None:
    registry = Registry(1 << 20)
    registry.set_quota(Quota(tokens=1000), tenant="a")
    fill(registry, A, range(1))
    with registry.lookup([7, *text(0, 1000)], namespace=A) as plan:
        assert plan.reused_tokens
        with pytest.raises(QuotaExceeded):
            registry.add(1, None, text(1, 1000), namespace=A)
        assert plan.revalidate()
    registry.add(1, None, text(1, 1000), namespace=A)
    assert 0 not in registry


def test_pins_are_limited_and_come_back() -> None:
    registry = Registry(1 << 20)
    fill(registry, A, range(3))
    registry.set_quota(Quota(pins=2), tenant="a")
    plans = [registry.lookup([7, *text(node, 1000)], namespace=A) for node in range(2)]
    assert registry.usage("a")["pins"] == 2
    with pytest.raises(QuotaExceeded, match="pins"):
        registry.lookup([7, *text(2, 1000)], namespace=A)
    assert registry.lookup(text(50, 1000), namespace=A).reused_tokens == 0
    plans.pop().release()
    registry.lookup([7, *text(2, 1000)], namespace=A).release()
    plans.pop().release()
    assert registry.usage("a")["pins"] == 0


def test_entries_bound_what_the_smallest_chunks_take() -> None:
    """Text that is cut as often as possible fills the index no further than its quota."""
    registry = Registry(1 << 20)
    registry.set_quota(Quota(entries=500), tenant="a")
    for node in range(40):
        tokens = [0] * 64 * 60 + text(node, 100)
        registry.add(node, None, tokens, namespace=A)
        assert registry.usage("a")["entries"] <= 500
    stats = registry.stats()
    assert stats["donors"] + stats["windows"] <= 500


def test_limits_can_be_changed_and_taken_away() -> None:
    registry = Registry(1 << 20)
    registry.set_quota(Quota(tokens=1000))
    registry.set_quota(Quota(), tenant="a")
    assert fill(registry, A, range(3)) == [0, 1, 2]
    registry.set_quota(None, tenant="a")
    registry.add(3, None, text(3, 1000), namespace=A)
    assert registry.usage("a")["tokens"] == 1000
    registry.set_quota(None)
    registry.add(4, None, text(4, 1000), namespace=A)
    assert registry.usage("a")["tokens"] == 2000


def test_usage_returns_to_nothing() -> None:
    registry = Registry(1 << 20)
    fill(registry, A, range(4))
    registry.split(1, 400, 10)
    assert registry.usage("a")["nodes"] == 5
    registry.remove(10)
    registry.remove(1)
    assert registry.forget(A) == 3
    assert set(registry.usage("a").values()) == {0}
    fill(registry, A, range(2))
    registry.clear()
    assert set(registry.usage("a").values()) == {0}


def test_a_quota_is_a_value() -> None:
    quota = Quota(tokens=5, pins=6)
    assert (quota.entries, quota.tokens, quota.pins) == (None, 5, 6)
    assert quota == pickle.loads(pickle.dumps(quota)) != Quota()
    assert repr(quota) == "Quota(entries=None, tokens=5, pins=6)"
    assert len({quota, Quota(None, 5, 6)}) == 1
    with pytest.raises(InvalidParams, match="tokens is -1"):
        Quota(tokens=-1)
