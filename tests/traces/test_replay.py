"""Replay through the real registry: accounting, finite capacity, and never less than a prefix."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from irminsul import Policy
from irminsul.traces.radix import RadixCache
from irminsul.traces.replay import IrminsulCache


def text(seed, length):
    return np.random.default_rng(seed).integers(0, 100_000, length, dtype=np.uint32)


def test_a_moved_document_is_reused_whole():
    cache = IrminsulCache()
    document = text(1, 2000)
    cache.serve(np.concatenate([text(2, 100), document]))
    outcome = cache.serve(np.concatenate([text(3, 177), document]))
    assert (outcome.prompt, outcome.prefix, outcome.reused) == (2177, 0, 1999)
    assert (outcome.spans, outcome.depth, outcome.computed) == (1, 1, 178)


def test_a_repeated_prompt_is_prefix_but_for_its_last_token():
    cache = IrminsulCache()
    cache.serve(text(1, 500))
    outcome = cache.serve(text(1, 500))
    assert (outcome.prefix, outcome.reused, outcome.computed) == (499, 0, 1)


def test_depth_grows_with_every_approximate_turn():
    cache = IrminsulCache()
    history = text(0, 400)
    depths = []
    for turn in range(4):
        prompt = np.concatenate([text(100 + turn, 60), history])
        depths.append(cache.serve(prompt).depth)
        history = np.concatenate([history, text(200 + turn, 300)])
    assert depths == [0, 1, 2, 3]


def test_policy_reaches_the_registry():
    cache = IrminsulCache(policy=Policy(max_segments=1))
    a, b = text(1, 300), text(2, 600)
    cache.serve(np.concatenate([text(3, 90), a, text(4, 50), b]))
    outcome = cache.serve(np.concatenate([text(5, 90), b, text(6, 50), a]))
    assert (outcome.spans, outcome.reused) == (1, 600)


PARTS = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=8)


@settings(max_examples=40, deadline=None)
@given(PARTS, st.integers(300, 3000))
def test_a_small_cache_stays_consistent(layout, capacity):
    documents = [text(seed, 200 + 90 * seed) for seed in range(6)]
    cache, plain = IrminsulCache(capacity), RadixCache(capacity)
    for number, order in enumerate(layout):
        prompt = np.concatenate([text(50 + number, 40), *(documents[i] for i in order)])
        outcome = cache.serve(prompt)
        matched, _ = plain.match(prompt)
        plain.insert(prompt)
        assert outcome.prefix + outcome.reused >= min(matched, len(prompt) - 1)
        assert outcome.computed >= 1
        stats = cache.registry.stats()
        assert stats["tokens"] == cache.tree.tokens <= capacity


@pytest.mark.parametrize("length", [1, 2, 33])
def test_short_prompts_are_computed(length):
    cache = IrminsulCache()
    for _ in range(2):
        outcome = cache.serve(text(1, length))
        assert outcome.reused == 0
    assert outcome.prefix == length - 1
