"""Boundary markers against the chunker itself, after many left contexts."""

import irminsul
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from irminsul import ChunkParams
from irminsul.errors import InvalidParams, InvalidTokens
from irminsul.markers import Shared, boundary_marker, join_regions, mark_messages, marker_text
from irminsul.tokenizer import load_tokenizer
from tokenizers import AddedToken, Tokenizer, models


def text(seed, length):
    return np.random.default_rng(seed).integers(0, 100_000, length, dtype=np.uint32)


def region_chunks(prompt, start, params):
    """Chunks from `start` on, as (offset, fingerprint); None when no chunk starts there."""
    chunks = irminsul.chunk(prompt, params)
    bounds = chunks.bounds.tolist()
    if start not in bounds:
        return None
    first = bounds.index(start)
    offsets = [bound - start for bound in bounds[first:]]
    return list(zip(offsets, chunks.fingerprints[first:].tolist(), strict=False))


@pytest.mark.parametrize(
    "params",
    [ChunkParams(), ChunkParams(128, 512, 2048), ChunkParams(secret=0xDEAD_BEEF)],
    ids=["default", "large", "secret"],
)
def test_a_region_has_the_same_chunks_after_200_contexts(params):
    marker = boundary_marker(range(1000, 1064), params)
    region = text(1, 3000)
    seen = set()
    plain = set()
    for seed in range(200):
        context = text(seed + 10, 1 + 7 * seed)
        marked = join_regions([context, Shared(region)], marker)
        seen.add(str(region_chunks(marked, len(context) + 64, params)))
        bounds = irminsul.chunk(np.concatenate([context, region]), params).bounds - len(context)
        plain.add(tuple(bounds[bounds >= 0][:3]))
    assert len(seen) == 1
    assert "None" not in seen
    assert len(plain) > 1, "without markers the first chunks vary, so the test means something"


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 2**32 - 1), min_size=24, max_size=40, unique=True),
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 3), max_size=200),
)
@example(list(range(64)), 0, [0])
def test_any_ids_after_any_context(ids, secret, context):
    params = ChunkParams(secret=secret)
    marker = boundary_marker(ids, params)
    assert marker.dtype == np.uint32
    assert set(marker.tolist()) <= set(ids)
    prompt = np.concatenate([np.array(context, np.uint32), marker, text(0, 10)])
    assert len(context) + 64 in irminsul.chunk(prompt, params).bounds


@pytest.mark.parametrize("position", [31, 63])
def test_a_damaged_marker_does_not_cut(position):
    marker = boundary_marker(range(64))
    marker[position] += 12345
    hits = 0
    for seed in range(20):
        context = text(seed, 30)
        bounds = irminsul.chunk(np.concatenate([context, marker, text(99, 10)])).bounds
        hits += 94 in bounds
    # Without the marker's own rule a cut at this place is one of content, once in 64 contexts.
    assert hits <= 2


def test_both_parities_are_needed():
    with pytest.raises(InvalidParams, match="these 1 ids"):
        boundary_marker([int(boundary_marker(range(64))[0])])
    with pytest.raises(InvalidParams, match="these 0 ids"):
        boundary_marker([])


def test_an_id_of_mixed_value_zero_is_passed_over():
    assert 0 not in boundary_marker(range(64))


@pytest.mark.parametrize("bad", [-1, 2**32])
def test_ids_out_of_range(bad):
    with pytest.raises(InvalidTokens, match=str(bad)):
        boundary_marker([1, 2, bad])


def test_neighbouring_regions_share_a_marker():
    marker = boundary_marker(range(64))
    a, b = text(1, 5), text(2, 6)
    joined = join_regions([[7], Shared(a), Shared(b.tolist()), [8]], marker)
    expected = np.concatenate([[7], marker, a, marker, b, marker, [8]])
    np.testing.assert_array_equal(joined, expected)
    assert len(join_regions([], marker)) == 0


def test_the_default_tokenizer_keeps_markers_as_text():
    encoder = load_tokenizer()
    marker = boundary_marker(encoder)
    as_text = marker_text(marker, encoder)
    around = encoder.encode("before" + as_text + "after")
    start = len(encoder.encode("before"))
    np.testing.assert_array_equal(around[start : start + 64], marker)
    messages = [{"role": "user", "content": "Q"}, {"role": "tool", "content": "doc"}]
    marked = mark_messages(messages, [1], as_text)
    assert marked[0] == messages[0]
    assert marked[1]["content"] == as_text + "doc" + as_text
    assert messages[1]["content"] == "doc"


def test_white_space_markers_are_for_ids_only():
    encoder = load_tokenizer()
    space = [int(encoder.encode(s)[0]) for s in ("\n", " ", "\n\n", "  ", "\t", "   ", "\t\t")]
    with pytest.raises(InvalidParams, match="as ids"):
        marker_text(boundary_marker(space), encoder)


@pytest.mark.parametrize("index", [-1, 2, 1])
def test_only_text_messages_can_be_marked(index):
    messages = [{"role": "user", "content": "Q"}, {"role": "user", "content": None}]
    with pytest.raises(InvalidParams, match=f"message {index}"):
        mark_messages(messages, [index], "<m>")


def test_tokenizers_without_reserved_tokens():
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    with pytest.raises(InvalidParams, match="no reserved"):
        boundary_marker(tokenizer)
    tokenizer.add_special_tokens([AddedToken(f"<|reserved_{i}|>") for i in range(40)])
    assert boundary_marker(tokenizer).min() >= 1


@pytest.mark.parametrize("other", [5, None, object()])
def test_other_sources(other):
    with pytest.raises(InvalidParams, match="neither"):
        boundary_marker(other)
