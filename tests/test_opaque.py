"""Placeholders of images through the real registry: equal content is reused, nothing else is."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from irminsul import Namespace, Registry, Reuse
from irminsul.errors import InvalidParams, InvalidTokens
from irminsul.opaque import Opaque, mask_opaque

PLACEHOLDER = 128_815
CAT, DOG = (hashlib.sha256(name).digest() for name in (b"cat", b"dog"))
NAMESPACE = Namespace()


def text(seed, length):
    return np.random.default_rng(seed).integers(0, 100_000, length, dtype=np.uint32)


def prompt(head, digest, recorded, image=300):
    image_ids = np.full(image, PLACEHOLDER, np.uint32)
    tokens = np.concatenate([head, text(1, 400), image_ids, text(2, 400), [7]])
    start = len(head) + 400
    return mask_opaque(tokens, [Opaque(start, start + image, digest)], recorded=recorded), start


def reused_positions(recorded_digest, digest):
    registry = Registry(1 << 16)
    registry.record(prompt(text(8, 100), recorded_digest, True)[0], 0, namespace=NAMESPACE)
    tokens, start = prompt(text(9, 150), digest, False)
    plan = registry.lookup(tokens, namespace=NAMESPACE)
    positions = set()
    for segment in plan.segments:
        if isinstance(segment, Reuse):
            positions.update(range(segment.target, segment.target + segment.length))
    inside = {p for p in positions if start <= p < start + 300}
    return len(positions), len(inside)


def test_the_same_image_is_reused_with_its_surroundings():
    assert reused_positions(CAT, CAT) == (1100, 300)


@pytest.mark.parametrize(
    ("recorded", "digest"), [(CAT, DOG), (None, CAT), (CAT, None), (None, None)]
)
def test_another_image_is_not(recorded, digest):
    assert reused_positions(recorded, digest) == (800, 0)


def test_without_masking_the_images_would_be_mixed_up():
    registry = Registry(1 << 16)
    image_ids = np.full(300, PLACEHOLDER, np.uint32)
    registry.record(np.concatenate([text(8, 100), image_ids]), 0, namespace=NAMESPACE)
    unmasked = np.concatenate([text(9, 150), image_ids])
    assert registry.lookup(unmasked, namespace=NAMESPACE).reused_tokens > 200


@settings(max_examples=100, deadline=None)
@given(st.binary(min_size=16, max_size=64), st.binary(min_size=16, max_size=64), st.booleans())
def test_ids_follow_content_and_nothing_else(a, b, recorded):
    tokens = list(range(20))
    ids = [
        mask_opaque(tokens, [Opaque(5, 15, digest)], recorded=side)
        for digest, side in ((a, recorded), (b, recorded), (a, not recorded))
    ]
    assert ((ids[0][5:15] >= 2**31) & (ids[0][5:15] < 2**32 - 2)).all()
    np.testing.assert_array_equal(ids[0], ids[2])
    assert (ids[0].tolist() == ids[1].tolist()) == (a == b)
    np.testing.assert_array_equal(np.delete(ids[0], np.s_[5:15]), [*range(5), *range(15, 20)])


def test_ranges_without_a_hash_never_meet():
    sides = [mask_opaque([1] * 8, [Opaque(0, 8)], recorded=side) for side in (True, False)]
    assert not (sides[0] == sides[1]).any()
    assert min(map(min, sides)) > 2**32 - 3


def test_ranges_may_touch_and_come_in_any_order():
    ranges = [Opaque(4, 6, DOG), Opaque(2, 4, CAT)]
    masked = mask_opaque(np.arange(8, dtype=np.int64), ranges, recorded=True)
    assert masked.dtype == np.uint32
    assert (masked >= 2**31).tolist() == [False, False, True, True, True, True, False, False]


def test_tokens_are_not_changed():
    tokens = np.arange(8, dtype=np.uint32)
    mask_opaque(tokens, [Opaque(0, 8)], recorded=True)
    assert tokens.tolist() == list(range(8))


@pytest.mark.parametrize(
    "ranges",
    [
        [Opaque(3, 3)],
        [Opaque(4, 3)],
        [Opaque(-1, 3)],
        [Opaque(5, 9)],
        [Opaque(0, 4), Opaque(3, 6)],
    ],
)
def test_bad_ranges(ranges):
    with pytest.raises(InvalidParams, match="opaque range"):
        mask_opaque(range(8), ranges, recorded=True)


@pytest.mark.parametrize("digest", [b"short", "text" * 10, 2**200])
def test_bad_hashes(digest):
    with pytest.raises(InvalidParams, match="content_hash"):
        mask_opaque(range(8), [Opaque(0, 4, digest)], recorded=True)


@pytest.mark.parametrize("tokens", [[1, -1], [2**31], [1.5], [[1]], ["a"]])
def test_bad_tokens(tokens):
    with pytest.raises(InvalidTokens):
        mask_opaque(tokens, [], recorded=False)
    assert mask_opaque([], [], recorded=False).tolist() == []
