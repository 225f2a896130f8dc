"""Signposts name chunks that hold their window, and nothing else, whatever a store holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from irminsul import ChunkParams, Namespace
from irminsul.tiers import ChunkRows, ChunkSpace, RowLayout
from irminsul.tiers.signposts import WINDOW, Signposts, sampled
from numpy.typing import NDArray

LAYOUT = RowLayout("r", 2, 8)
SPACE = ChunkSpace(Namespace(model="m"), LAYOUT)
POSTS = Signposts(ChunkParams())
VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "golden" / "signposts.json").read_text()
)


def ids_of(seed: int, count: int) -> NDArray[np.uint32]:
    return np.random.default_rng(seed).integers(0, 1 << 32, count, dtype=np.uint32)


def slowly(ids: list[int]) -> list[int]:
    """The definition, one window after the other."""
    modulus, found = 1 << 64, []
    for start in range(len(ids) - WINDOW + 1):
        total = 0
        for place, token in enumerate(ids[start : start + WINDOW]):
            mixed = token + 1
            mixed ^= mixed >> 7
            mixed = mixed * 0xFF51AFD7ED558CCD % modulus
            mixed ^= mixed >> 33
            total = (total + mixed * pow(0x9E3779B97F4A7C15, place, modulus)) % modulus
        total ^= total >> 29
        total = total * 0xC4CEB9FE1A85EC53 % modulus
        if total >> 59 == 0:
            found.append(start)
    return found


@given(st.integers(0, 1 << 30), st.integers(0, 300), st.sampled_from([3, 1 << 17, 1 << 32]))
def test_sampling_is_its_definition(seed: int, count: int, vocabulary: int) -> None:
    ids = np.random.default_rng(seed).integers(0, vocabulary, count, dtype=np.uint32)
    assert sampled(ids).tolist() == slowly(ids.tolist())


def test_sampling_knows_no_position() -> None:
    ids = ids_of(1, 100_000)
    every = sampled(ids)
    assert len(every) == pytest.approx(len(ids) / 32, rel=0.1)
    assert (sampled(ids[77:5000]) + 77).tolist() == every[
        (every >= 77) & (every <= 5000 - WINDOW)
    ].tolist()


@pytest.mark.parametrize("vector", VECTORS)
def test_format_is_frozen(vector: dict[str, Any]) -> None:
    ids = ids_of(vector["seed"], vector["count"])
    posts = sorted(POSTS.of(SPACE.ref(ids)), key=lambda post: post.ref.key)
    assert [post.ref.key.hex() for post in posts] == vector["keys"]
    assert {bytes(post.rows[0, :2].reshape(-1)[:16]).hex() for post in posts} == {vector["rows"]}


@given(st.integers(0, 1 << 30), st.integers(0, 90), st.integers(0, 200), st.integers(0, 200))
def test_whoever_meets_a_window_finds_the_chunk(seed: int, head: int, low: int, cut: int) -> None:
    ids = ids_of(seed, 400)
    posts = {post.ref: post for post in POSTS.of(SPACE.ref(ids))}
    text = np.concatenate([ids_of(seed + 1, head), ids[low : 400 - cut], ids_of(seed + 2, 9)])
    asked = POSTS.asked(SPACE, text, [(0, len(text))])
    met = [ref for ref in asked if ref in posts]
    assert len(met) == len(set(sampled(ids[low : 400 - cut]).tolist()))
    for ref in met:
        found = POSTS.read(posts[ref], SPACE, text, asked[ref])
        assert found is not None
        assert found.ref.key == SPACE.ref(ids).key
        assert (found.start, found.shared) == (head, 400 - cut - low)


def test_signposts_are_no_chunks_and_tenants_have_their_own() -> None:
    ids = ids_of(3, 300)
    (first, *_) = POSTS.of(SPACE.ref(ids))
    place = int(sampled(ids)[0])
    assert {post.ref.key for post in POSTS.of(SPACE.ref(ids))}.isdisjoint(
        SPACE.part(ids, at, at + WINDOW).key for at in range(300 - WINDOW)
    )
    other = ChunkSpace(Namespace(model="m", tenant="t"), LAYOUT)
    assert first.ref not in POSTS.asked(other, ids, [(place, place + WINDOW)])
    larger = Signposts(ChunkParams(max=1024))
    assert first.ref not in larger.asked(SPACE, ids, [(0, 300)])


@given(st.binary(max_size=200), st.integers(0, 600))
def test_nonsense_names_nothing(noise: bytes, count: int) -> None:
    ids = ids_of(5, 300)
    post = POSTS.of(SPACE.ref(ids))[0]
    at = next(at for at in sampled(ids).tolist() if POSTS.asked(SPACE, ids, [(at, at + WINDOW)]))
    rows = np.zeros(post.rows.size, dtype=np.uint8)
    rows[4 : 4 + len(noise)] = np.frombuffer(noise, dtype=np.uint8)
    rows[:4] = np.array([count], dtype="<u4").view(np.uint8)
    bad = ChunkRows(post.ref, 0, 0, 0, rows.reshape(post.rows.shape))
    assert POSTS.read(bad, SPACE, ids, at) is None


def test_text_that_is_sampled_everywhere_stays_bounded() -> None:
    window = next(
        ids for seed in range(10_000) if len(sampled(ids := np.full(WINDOW, seed, np.uint32)))
    )
    flood = np.tile(window, 16)
    assert len(sampled(flood)) > 400
    assert len(POSTS.of(SPACE.ref(flood))) <= 32
    text = ids_of(6, 100_000)
    assert len(POSTS.asked(SPACE, text, [(0, len(text))])) == 512
    assert POSTS.of(SPACE.ref(ids_of(7, 513))) == []
