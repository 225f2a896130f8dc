"""A pool finds what it kept anywhere, and nothing that it does not hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from irminsul import Namespace, Policy
from irminsul import chunk as chunk_tokens
from irminsul.tiers import (
    ChunkPool,
    ChunkRows,
    RowLayout,
)
from numpy.typing import NDArray

MIB = 1 << 20
LAYOUT = RowLayout("test-rows", 2, 32)
NAMESPACE = Namespace(model="m")
RANDOM = np.random.default_rng(7)
TEXT = RANDOM.integers(0, 100_000, 3000)
SINKS = Policy().sink_tokens
EAGER = {"link_bytes_per_s": 1e12, "prefill_s_per_token": 1.0}


def rows_of(tokens: NDArray[np.int64], start: int, base: int) -> NDArray[np.uint8]:
    """Rows that say which token and position they are of."""
    shape = (LAYOUT.layers, len(tokens), LAYOUT.row_bytes)
    rows = np.zeros(shape, dtype=np.uint8)
    rows[:, :, :8] = tokens.astype("<i8").view(np.uint8).reshape(len(tokens), 8)
    positions = np.arange(base + start, base + start + len(tokens), dtype="<i8")
    rows[:, :, 8:16] = positions.view(np.uint8).reshape(len(tokens), 8)
    return rows


def kept(pool: ChunkPool, tokens: NDArray[np.int64], namespace: Namespace = NAMESPACE) -> int:
    """Keep every chunk of a prompt, as an engine that computed it would; return the tokens."""
    wanted = pool.chunks(namespace, tokens, [(0, len(tokens))])
    chunks = []
    for part in wanted:
        ids = tokens[part.start : part.start + len(part.ref.tokens)]
        chunks.append(ChunkRows(part.ref, part.start, 0, 0, rows_of(ids, part.start, 0)))
    pool.keep(chunks, [part.before for part in wanted])
    return sum(len(part.ref.tokens) for part in chunks)


def check(pool: ChunkPool, prompt: NDArray[np.int64], prefix: int = 0) -> int:
    """Check every row that the pool would serve of `prompt`; return how many tokens."""
    total, position = 0, prefix
    for span in pool.find(NAMESPACE, prompt, prefix):
        assert position <= span.start < span.end < len(prompt)
        position = span.end
        parts = [lease.chunk.rows[:, at : at + size] for lease, at, size in span.pieces]
        rows = np.concatenate(parts, axis=1)
        ids = np.ascontiguousarray(rows[0, :, :8]).view("<i8").ravel()
        assert np.array_equal(ids, prompt[span.start : span.end])
        positions = np.ascontiguousarray(rows[1, :, 8:16]).view("<i8").ravel()
        assert np.array_equal(positions, np.arange(len(ids)) + span.source)
        total += len(ids)
        span.release()
    return total


def test_kept_text_is_found_at_another_position() -> None:
    pool = ChunkPool(LAYOUT, 4 * MIB)
    stored = kept(pool, TEXT)
    prompt = np.concatenate([RANDOM.integers(0, 100_000, 77), TEXT, [5]])
    # All but sinks, and the tail behind the last whole chunk.
    assert check(pool, prompt) == stored - SINKS
    assert stored > 2400
    assert check(pool, prompt, prefix=1000) < stored
    other = Namespace(model="m", tenant="x")
    assert pool.find(other, prompt, 0) == []
    pool.close()


def test_chunks_that_follow_each_other_are_one_span() -> None:
    pool = ChunkPool(LAYOUT, 4 * MIB)
    kept(pool, TEXT)
    prompt = np.concatenate([RANDOM.integers(0, 100_000, 77), TEXT, [5]])
    (span,) = pool.find(NAMESPACE, prompt, 0)
    assert len(span.pieces) > 10
    span.release()


def test_chunks_of_two_prompts_are_two_spans() -> None:
    pool = ChunkPool(LAYOUT, 4 * MIB)
    half = int(chunk_tokens(TEXT).bounds[10])
    kept(pool, TEXT[: half + 200])
    # The same text goes on elsewhere: the rows are not consecutive.
    kept(pool, np.concatenate([RANDOM.integers(0, 100_000, 500), TEXT]))
    prompt = np.append(TEXT, 1)
    spans = pool.find(NAMESPACE, prompt, 0)
    assert [span.source - span.start for span in spans] == [0, 500]
    for span in spans:
        span.release()
    check(pool, prompt)


def test_what_is_kept_is_not_asked_for_again() -> None:
    pool = ChunkPool(LAYOUT, 4 * MIB)
    kept(pool, TEXT)
    assert pool.chunks(NAMESPACE, TEXT, [(0, len(TEXT))]) == []
    pool.clear()
    assert check(pool, np.append(TEXT, 1)) == 0
    assert len(pool.chunks(NAMESPACE, TEXT, [(0, len(TEXT))])) > 10
    pool.close()


def test_chunks_of_what_is_known_are_left_alone() -> None:
    pool = ChunkPool(LAYOUT, 4 * MIB)
    bounds = chunk_tokens(TEXT).bounds
    hole = (int(bounds[4]), int(bounds[5]))
    (found,) = pool.chunks(NAMESPACE, TEXT, [hole])
    assert (found.start, found.start + len(found.ref.tokens)) == hole
    # A few tokens of a chunk are computed sooner than the chunk is fetched.
    assert pool.chunks(NAMESPACE, TEXT, [(hole[0], hole[0] + 31)]) == []
    assert pool.chunks(NAMESPACE, TEXT, []) == []
    pool.close()


def test_rows_that_came_back_from_elsewhere_are_not_taken_for_those_that_left() -> None:
    pool = ChunkPool(LAYOUT, 4 * MIB)
    kept(pool, TEXT)
    wanted = ChunkPool(LAYOUT, 4 * MIB).chunks(NAMESPACE, TEXT, [(0, len(TEXT))])
    part = wanted[5]
    # As if an eviction and an insertion had come between a lookup and the lease of its rows.
    on_evict, pool.host._on_evict = pool.host._on_evict, lambda ref: None
    pool.host.discard(part.ref)
    pool.host._on_evict = on_evict
    ids = part.ref.tokens.astype(np.int64)
    pool.host.put([ChunkRows(part.ref, 9000, 0, 0, rows_of(ids, 0, 9000))])
    prompt = np.concatenate([RANDOM.integers(0, 100_000, 77), TEXT, [5]])
    check(pool, prompt)  # that every row is the one it is said to be
    spans = pool.find(NAMESPACE, prompt, 0)
    assert 9000 in [span.source for span in spans]
    for span in spans:
        span.release()
    check(pool, prompt)


def test_eviction_takes_chunks_out_of_the_index() -> None:
    pool = ChunkPool(LAYOUT, MIB)
    texts = [RANDOM.integers(0, 100_000, 4000) for _ in range(8)]
    for text in texts:
        kept(pool, text)
    assert pool.host.counts["evicted"] > 0
    served = [check(pool, np.append(text, 1)) for text in texts]
    assert served[-1] > 3000
    assert sum(served) <= MIB // LAYOUT.token_bytes
    assert len(pool.index._nodes) == len(pool.index._chunks) == len(pool.host)
    assert pool.index._registry.stats()["nodes"] == len(pool.host)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 400), st.booleans()), max_size=12))
def test_any_mix_of_texts_serves_true_rows(steps: list[tuple[int, int, bool]]) -> None:
    texts = [np.random.default_rng(seed).integers(0, 50, 900) for seed in range(6)]
    pool = ChunkPool(LAYOUT, MIB)
    for number, shift, store in steps:
        prompt = np.concatenate([texts[number - 1][:shift], texts[number], [1]])
        check(pool, prompt, prefix=shift // 2)
        if store:
            kept(pool, prompt)
    pool.close()
    assert pool.host.used_bytes == 0


@pytest.mark.parametrize("host_bytes", [0, 1000])
def test_bad_bounds_are_refused(host_bytes: int) -> None:
    from irminsul.errors import InvalidParams

    with pytest.raises(InvalidParams):
        ChunkPool(LAYOUT, host_bytes)
