"""Keys are a digest of everything that makes rows interchangeable, and of nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from irminsul import Namespace, chunk
from irminsul.errors import InvalidParams, InvalidTokens
from irminsul.tiers import ChunkSpace, RowLayout

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "golden" / "tiers.json").read_text()
)
LAYOUT = RowLayout("r", 2, 8)

fields = st.tuples(*[st.sampled_from(["", "a", "b", "ab"])] * 5)
tokens = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20)


@pytest.mark.parametrize("vector", VECTORS)
def test_keys_are_frozen(vector: dict[str, Any]) -> None:
    space = ChunkSpace(Namespace(*vector["namespace"]), RowLayout(*vector["layout"]))
    assert space.ref(vector["tokens"]).key.hex() == vector["key"]


@given(fields, tokens, fields, tokens)
def test_keys_differ_exactly_where_content_does(
    first: tuple[str, ...], ids: list[int], second: tuple[str, ...], others: list[int]
) -> None:
    one = ChunkSpace(Namespace(*first), LAYOUT).ref(ids)
    two = ChunkSpace(Namespace(*second), LAYOUT).ref(others)
    assert (one.key == two.key) == ((first, ids) == (second, others))
    assert (one == two) == (one.key == two.key)


@given(tokens)
def test_the_dtype_of_ids_does_not_matter(ids: list[int]) -> None:
    space = ChunkSpace(Namespace(), LAYOUT)
    keys = {
        space.ref(ids).key,
        space.ref(np.array(ids, dtype=np.uint32)).key,
        space.ref(np.array(ids, dtype=np.int64)[::1]).key,
        space.ref(np.repeat(np.array(ids, dtype=np.uint64), 2)[::2]).key,
    }
    assert len(keys) == 1


def test_refs_follow_chunk_bounds() -> None:
    ids = np.random.default_rng(0).integers(0, 50_000, 2000)
    space = ChunkSpace(Namespace(), LAYOUT)
    chunks = chunk(ids)
    refs = space.refs(ids, chunks.bounds)
    assert np.array_equal(np.concatenate([ref.tokens for ref in refs]), ids)
    assert [len(ref.tokens) for ref in refs] == [part.end - part.start for part in chunks]
    assert refs[1].row_bytes == len(refs[1].tokens) * 16


def test_a_reference_cannot_change() -> None:
    ids = np.array([1, 2], dtype=np.uint32)
    ref = ChunkSpace(Namespace(), LAYOUT).ref(ids)
    ids[0] = 9
    assert list(ref.tokens) == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        ref.tokens[0] = 3


@pytest.mark.parametrize(
    "ids", [[], [[1]], [1.5], ["a"], [-1], [2**32], np.zeros(0, dtype=np.uint32)]
)
def test_bad_ids_are_refused(ids: Any) -> None:
    with pytest.raises(InvalidTokens):
        ChunkSpace(Namespace(), LAYOUT).ref(ids)


@pytest.mark.parametrize(
    "arguments",
    [("", 1, 1), ("é", 1, 1), ("n" * 256, 1, 1), ("n", 0, 1), ("n", 1, 0), ("n", 1 << 17, 1)],
)
def test_bad_layouts_are_refused(arguments: tuple[str, int, int]) -> None:
    with pytest.raises(InvalidParams):
        RowLayout(*arguments)
