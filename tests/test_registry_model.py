"""The registry against a plain model: whatever is added, split, removed, evicted and looked up."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from irminsul import ChunkParams, Namespace, Policy, Registry
from irminsul.errors import RegistryFull
from reference.registry import Model, Node, check_maximal, check_plan

NAMESPACES = {name: Namespace(tenant=name) for name in ("a", "b")}


def text(seed: int, count: int, below: int = 129_280) -> list[int]:
    return np.random.default_rng(seed).integers(0, below, count).tolist()


# Blocks that prompts and nodes are put together from: text, low-entropy text, and a run of one id.
BLOCKS = [text(i, 40 + 37 * i) for i in range(12)] + [text(20, 150, 3), [0] * 200, [7] * 90]


class RegistryMachine(RuleBasedStateMachine):
    """Random operations on the registry and on the model."""

    @initialize(
        capacity=st.sampled_from([1500, 4000, 1 << 20]),
        bits=st.sampled_from([0, 8, 64]),
        policy=st.sampled_from(
            [
                Policy(),
                Policy(sink_tokens=0, min_span=1),
                Policy(sink_tokens=4, min_span=8, max_hops=1, max_depth=1),
                Policy(min_span=16, recompute_head=5, max_segments=2),
            ]
        ),
    )
    def start(self, capacity: int, bits: int, policy: Policy) -> None:
        self.registry = Registry(capacity, ChunkParams(), policy, _fingerprint_bits=bits)
        self.policy = policy
        self.capacity = capacity
        self.model = Model()
        self.next_id = 1
        self.plans: list[tuple[Any, list[int], int, str]] = []

    def fresh_id(self) -> int:
        self.next_id += 1
        return self.next_id

    @rule(
        data=st.data(),
        blocks=st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=4),
        shift=st.sampled_from([0, 0, 0, 10]),
        hops=st.integers(0, 2),
        depth=st.integers(0, 2),
        namespace=st.sampled_from(sorted(NAMESPACES)),
    )
    def add(
        self, data: Any, blocks: Any, shift: int, hops: int, depth: int, namespace: str
    ) -> None:
        same = [n for n, entry in self.model.nodes.items() if entry.namespace == namespace]
        parent = data.draw(st.sampled_from([None, *same]))
        tokens = list(itertools.chain(*blocks))
        base = shift
        if parent is not None:
            above = self.model.nodes[parent]
            base += above.base + len(above.tokens)
        node = self.fresh_id()
        try:
            self.registry.add(
                node,
                parent,
                tokens,
                namespace=NAMESPACES[namespace],
                base_position=base,
                hops=hops,
                depth=depth,
            )
        except RegistryFull:
            assert self.capacity <= 4000
        else:
            self.model.add(node, Node(tokens, parent, namespace, base, hops, depth))
        self.follow_evictions(node, parent)

    def follow_evictions(self, node: int, parent: int | None) -> None:
        gone = {n for n in self.model.nodes if n not in self.registry}
        assert not gone or self.capacity <= 4000
        assert not gone & {node, parent}
        for host in sorted(gone, reverse=True):
            survivors = set(self.model.children(host)) - gone
            assert not survivors, "a node with live children was evicted"
        for host in gone:
            self.model.remove(host)

    @precondition(lambda self: self.model.nodes)
    @rule(data=st.data())
    def split(self, data: Any) -> None:
        node = data.draw(st.sampled_from(sorted(self.model.nodes)))
        length = len(self.model.nodes[node].tokens)
        if length > 1:
            at, head = data.draw(st.integers(1, length - 1)), self.fresh_id()
            self.registry.split(node, at, head)
            self.model.split(node, at, head)

    @precondition(lambda self: self.model.nodes)
    @rule(data=st.data())
    def remove(self, data: Any) -> None:
        node = data.draw(st.sampled_from(sorted(self.model.nodes)))
        self.registry.remove(node)
        self.model.remove(node)

    @rule(namespace=st.sampled_from(sorted(NAMESPACES)))
    def forget(self, namespace: str) -> None:
        count = sum(entry.namespace == namespace for entry in self.model.nodes.values())
        assert self.registry.forget(NAMESPACES[namespace]) == count
        self.model.forget(namespace)

    @rule(
        data=st.data(),
        head=st.sampled_from(BLOCKS),
        cut=st.integers(0, 60),
        tail=st.sampled_from(BLOCKS),
        namespace=st.sampled_from(sorted(NAMESPACES)),
        keep=st.booleans(),
    )
    def lookup(self, data: Any, head: Any, cut: int, tail: Any, namespace: str, keep: bool) -> None:
        node = data.draw(st.sampled_from([None, *sorted(self.model.nodes)]))
        prompt = head[cut:] + self.model.path(node)[cut // 2 :] + tail
        prefix_len = data.draw(st.sampled_from([0, 0, min(50, len(prompt)), len(prompt)]))
        plan = self.registry.lookup(prompt, namespace=NAMESPACES[namespace], prefix_len=prefix_len)
        check_plan(plan, prompt, prefix_len, namespace, self.model, self.policy)
        if self.policy.recompute_head == 0 and self.policy.max_hops > 1:
            check_maximal(plan, prompt, prefix_len, self.model, self.policy)
        if keep:
            self.plans.append((plan, prompt, prefix_len, namespace))

    @precondition(lambda self: self.plans)
    @rule(data=st.data())
    def revalidate(self, data: Any) -> None:
        index = data.draw(st.integers(0, len(self.plans) - 1))
        plan, prompt, prefix_len, namespace = self.plans[index]
        before = plan.segments
        unchanged = plan.revalidate()
        assert unchanged == (plan.segments == before)
        check_plan(plan, prompt, prefix_len, namespace, self.model, self.policy)
        assert plan.revalidate()

    @precondition(lambda self: self.plans)
    @rule()
    def release(self) -> None:
        self.plans.pop()[0].release()

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "registry"):
            return
        stats = self.registry.stats()
        assert stats["nodes"] == len(self.model.nodes)
        assert stats["tokens"] == sum(len(n.tokens) for n in self.model.nodes.values())
        assert stats["tokens"] <= stats["resident_tokens"] <= self.capacity
        assert stats["namespaces"] == len({n.namespace for n in self.model.nodes.values()})
        assert (stats["donors"] == 0) >= (stats["nodes"] == 0)


RegistryMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
test_registry_follows_the_model = RegistryMachine.TestCase
