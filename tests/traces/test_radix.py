"""The radix tree against a list of prompts, and what a listener is told against the tree."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from irminsul.traces.radix import Part, RadixCache

PROMPTS = st.lists(
    st.lists(st.integers(0, 1), min_size=1, max_size=12).map(lambda ids: np.array(ids, np.uint32)),
    max_size=12,
)


class Recorder:
    """Rebuilds every path from the events alone."""

    def __init__(self):
        self.tokens, self.parents = {}, {}

    def added(self, node):
        assert node.key not in self.tokens
        self.tokens[node.key] = node.tokens.tolist()
        self.parents[node.key] = node.parent.key

    def split(self, node, head):
        at = len(head.tokens)
        whole = self.tokens[node.key]
        assert whole[:at] == head.tokens.tolist()
        self.tokens[head.key], self.tokens[node.key] = whole[:at], whole[at:]
        self.parents[head.key], self.parents[node.key] = self.parents[node.key], head.key

    def removed(self, node):
        assert node.key not in self.parents.values(), "a node with children was evicted"
        del self.tokens[node.key], self.parents[node.key]

    def paths(self):
        def path(key):
            above = self.parents[key]
            return (path(above) if above in self.tokens else []) + self.tokens[key]

        return {tuple(path(key)) for key in self.tokens}


def longest_shared(prompt, others):
    def shared(other):
        pairs = zip(prompt, other, strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(prompt), len(other)))

    return max(map(shared, others), default=0)


@settings(max_examples=200, deadline=None)
@given(PROMPTS)
def test_matches_the_longest_shared_prefix(prompts):
    recorder = Recorder()
    cache = RadixCache(listener=recorder)
    for i, prompt in enumerate(prompts):
        matched, node = cache.match(prompt)
        assert matched == longest_shared(prompt, prompts[:i])
        assert node.end == matched
        cache.insert(prompt)
        assert tuple(prompt.tolist()) in recorder.paths()
    assert cache.tokens == sum(map(len, recorder.tokens.values()))


@settings(max_examples=200, deadline=None)
@given(PROMPTS, st.integers(1, 30))
def test_capacity_is_kept(prompts, capacity):
    recorder = Recorder()
    cache = RadixCache(capacity, recorder)
    for prompt in prompts:
        cache.insert(prompt)
        assert cache.tokens == sum(map(len, recorder.tokens.values())) <= capacity
        fits = len(prompt) <= capacity
        assert cache.match(prompt)[0] == len(prompt) if fits else True


def test_the_least_recently_used_leaf_goes_first():
    cache = RadixCache(capacity=9)
    a, b, c = (np.full(3, i, np.uint32) for i in range(3))
    for prompt in (a, b, c, a):
        cache.insert(prompt)
    cache.insert(np.full(3, 9, np.uint32))
    assert [cache.match(prompt)[0] for prompt in (a, b, c)] == [3, 0, 3]
    assert cache.evicted_tokens == 3


def test_parts_become_nodes_with_their_own_history():
    recorder = Recorder()
    cache = RadixCache(listener=recorder)
    cache.insert(np.arange(10, dtype=np.uint32), [Part(4), Part(7, hops=2, depth=1), Part(10)])
    assert sorted(map(len, recorder.tokens.values())) == [3, 3, 4]
    _, node = cache.match(np.arange(7, dtype=np.uint32))
    assert (node.hops, node.depth) == (2, 1)


@pytest.mark.parametrize("length", [0, 1])
def test_short_prompts(length):
    cache = RadixCache()
    cache.insert(np.zeros(length, np.uint32))
    assert cache.match(np.zeros(5, np.uint32))[0] == length
