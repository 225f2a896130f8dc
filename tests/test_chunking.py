"""Chunking: golden vectors, the slow reference, every kind of input, and refusals."""

from __future__ import annotations

import array
import copy
import ctypes
import itertools
import json
import pickle
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from irminsul import Chunk, ChunkParams, chunk, chunk_many
from irminsul.errors import InvalidParams, InvalidTokens
from reference.gear import chunk_bounds
from reference.tokens import expand
from reference.xxhash64 import fingerprint

GOLDEN = Path(__file__).parent / "golden"
VECTORS = json.loads((GOLDEN / "chunks.json").read_text(encoding="utf-8"))
TEXT = np.random.default_rng(0).integers(0, 129_280, 20_000).astype(np.uint32)


def test_golden_chunks() -> None:
    for vector in VECTORS:
        chunks = chunk(expand(vector["tokens"]), ChunkParams(**vector["params"]))
        assert chunks.bounds.tolist() == vector["bounds"], vector["name"]
        fingerprints = [f"{value:016x}" for value in chunks.fingerprints.tolist()]
        assert fingerprints == vector["fingerprints"], vector["name"]


def test_markers_cut_after_every_left_context() -> None:
    vectors = [v for v in VECTORS if v["name"].startswith("marker after context")]
    assert len(vectors) == 200
    shared = set()
    for vector in vectors:
        end = sum(len(expand([part])) for part in vector["tokens"][:2])
        at = vector["bounds"].index(end)
        shared.add(tuple(vector["fingerprints"][at:]))
    assert len(shared) == 1, "the same text after a marker is cut the same way everywhere"


@pytest.mark.slow
def test_golden_files_are_what_their_script_makes() -> None:
    files = runpy.run_path(str(GOLDEN / "make.py"))["files"]()
    for name, text in files.items():
        assert (GOLDEN / name).read_text(encoding="utf-8") == text, name


@settings(deadline=None, max_examples=80)
@given(
    parts=st.lists(
        st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 250), st.integers(1, 32)), max_size=4
    ),
    sizes=st.tuples(st.integers(64, 100), st.integers(2, 100), st.integers(0, 200)),
    secret=st.integers(0, 2**32 - 1),
)
def test_agrees_with_the_reference(
    parts: list[tuple[int, int, int]], sizes: tuple[int, int, int], secret: int
) -> None:
    tokens: list[int] = []
    for seed, count, bits in parts:
        tokens += np.random.default_rng(seed).integers(0, 1 << bits, count).tolist()
    minimum, average, maximum = sizes[0], sizes[0] + sizes[1], sum(sizes)
    chunks = chunk(tokens, ChunkParams(minimum, average, maximum, secret))
    bounds = chunk_bounds(tokens, minimum, average, maximum, secret)
    assert chunks.bounds.tolist() == bounds
    parts_of = itertools.pairwise(bounds)
    assert chunks.fingerprints.tolist() == [fingerprint(tokens[a:b]) for a, b in parts_of]


def test_chunks_are_a_sequence_of_chunks() -> None:
    chunks = chunk(TEXT)
    assert len(chunks) == len(chunks.bounds) - 1 == len(chunks.fingerprints)
    assert (chunks.bounds.dtype, chunks.fingerprints.dtype) == (np.int64, np.uint64)
    assert chunks.bounds is chunks.bounds
    assert not chunks.bounds.flags.writeable
    listed = list(chunks)
    assert listed[0] == chunks[0] == chunks[-len(chunks)]
    assert listed[-1] == chunks[-1]
    assert sum(len(part) for part in listed) == len(TEXT)
    match chunks[1]:
        case Chunk(start, end, value):
            assert (start, end) == tuple(chunks.bounds[1:3])
            assert value == chunks.fingerprints[1]
    assert hash(chunks[0]) == hash(listed[0])
    assert chunks[0] != chunks[1]
    for index in (len(chunks), -len(chunks) - 1):
        with pytest.raises(IndexError):
            chunks[index]


def test_no_tokens_no_chunks() -> None:
    chunks = chunk([])
    assert chunks.bounds.tolist() == [0]
    assert len(chunks) == len(list(chunks)) == 0


CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "list": np.ndarray.tolist,
    "tuple": lambda ids: tuple(ids.tolist()),
    "list of numpy scalars": list,
    "int64": lambda ids: ids.astype(np.int64),
    "uint64": lambda ids: ids.astype(np.uint64),
    "int32": lambda ids: ids.astype(np.int32),
    "array I": lambda ids: array.array("I", ids.tolist()),
    "array q": lambda ids: array.array("q", ids.tolist()),
    "memoryview": lambda ids: memoryview(ids),
    "cast bytes": lambda ids: memoryview(ids.tobytes()).cast("I"),
    "strided": lambda ids: np.repeat(ids, 2)[::2],
    "reversed twice": lambda ids: ids[::-1].copy()[::-1],
    "little-endian ctypes": lambda ids: (ctypes.c_uint32 * len(ids))(*ids.tolist()),
    "not aligned": lambda ids: np.frombuffer(b"." + ids.tobytes(), dtype=np.uint32, offset=1),
    "read-only": lambda ids: np.frombuffer(ids.tobytes(), dtype=np.uint32),
}


@pytest.mark.parametrize("kind", CONVERSIONS)
@pytest.mark.parametrize("count", [1000, 10_000])
def test_every_kind_of_input_gives_the_same_chunks(kind: str, count: int) -> None:
    expected = chunk(TEXT[:count])
    chunks = chunk(CONVERSIONS[kind](TEXT[:count]))
    assert np.array_equal(chunks.bounds, expected.bounds)
    assert np.array_equal(chunks.fingerprints, expected.fingerprints)


@pytest.mark.parametrize("value", [0, 1, 255, 2**15, 2**30 - 1, 2**30, 2**31, 2**32 - 1])
def test_integers_of_every_size_in_lists(value: int) -> None:
    tokens = [5, value, 2**30 + 7, value] * 40
    expected = chunk(np.array(tokens, np.uint32)).fingerprints
    assert np.array_equal(chunk(tokens).fingerprints, expected)


def test_integers_that_are_no_exact_ints_in_lists() -> None:
    class Token(int):
        pass

    tokens = [Token(3), np.int64(4), np.uint8(5), 6] * 30
    expected = chunk([int(token) for token in tokens]).fingerprints
    assert np.array_equal(chunk(tokens).fingerprints, expected)


def test_many_prompts_at_once() -> None:
    prompts = [TEXT[:5000], [], TEXT[:300].tolist(), TEXT[100:20_000].astype(np.int64)]
    for params in (None, ChunkParams(secret=9)):
        expected = [chunk(prompt, params) for prompt in prompts]
        flat = np.concatenate([np.asarray(prompt, np.uint32) for prompt in prompts])
        offsets = np.cumsum([0, *map(len, prompts)])
        for many in (
            chunk_many(prompts, params),
            chunk_many(iter(prompts), params),
            chunk_many(flat, params, offsets=offsets),
            chunk_many(flat, params, offsets=offsets.tolist()),
        ):
            assert len(many) == len(expected)
            for got, want in zip(many, expected, strict=True):
                assert np.array_equal(got.bounds, want.bounds)
                assert np.array_equal(got.fingerprints, want.fingerprints)
    assert chunk_many([]) == []
    assert chunk_many([], offsets=[0]) == []


@pytest.mark.parametrize("offsets", [[], [0], [1, 3], [0, 2, 1, 3], [0, 4], [0, 2], [0, -1, 3]])
def test_offsets_that_do_not_divide_the_tokens_are_refused(offsets: list[int]) -> None:
    with pytest.raises(InvalidParams, match="offset"):
        chunk_many([1, 2, 3], offsets=offsets)


def test_unusable_prompts_among_many_are_refused() -> None:
    with pytest.raises(InvalidTokens):
        chunk_many([[1], [-1]])
    with pytest.raises(InvalidTokens):
        chunk_many([1, 2])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        chunk_many(5)  # type: ignore[call-overload]


def test_small_integers_and_ranges() -> None:
    expected = chunk(list(range(300))).fingerprints
    assert np.array_equal(chunk(range(300)).fingerprints, expected)
    for dtype in (np.int16, np.uint16):
        assert np.array_equal(chunk(np.arange(300, dtype=dtype)).fingerprints, expected)


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    expected = chunk(TEXT).fingerprints
    for dtype in (torch.int64, torch.int32):
        tensor = torch.from_numpy(TEXT.astype(np.int64)).to(dtype)
        assert np.array_equal(chunk(tensor).fingerprints, expected)
        strided = torch.stack([tensor, tensor], dim=1)[:, 0]
        assert np.array_equal(chunk(strided).fingerprints, expected)
    refused = [
        (torch.zeros(3), "format"),
        (torch.zeros(3, dtype=torch.bool), "format"),
        (torch.zeros((2, 2), dtype=torch.int64), "2 dimensions"),
        (torch.zeros((), dtype=torch.int64), "0 dimensions"),
        (torch.tensor([5, -5]), r"tokens\[1\] is -5"),
        (torch.zeros(3, dtype=torch.int64, device="meta"), "cannot be read on the CPU"),
    ]
    for tensor, message in refused:
        with pytest.raises(InvalidTokens, match=message):
            chunk(tensor)


REFUSED: list[tuple[Any, str]] = [
    ([1, -1], r"tokens\[1\] is -1; allowed: integers in \[0, 2\*\*32\)"),
    ([2**32], r"tokens\[0\] is 4294967296"),
    ([10**30], r"tokens\[0\] is 10{30}"),
    ([1, 2, 3.0], r"tokens\[2\] is of type float"),
    ([True], r"tokens\[0\] is of type bool"),
    ([None], "NoneType"),
    (["1"], "str"),
    ([[1, 2]], "list"),
    ((1, -2), r"tokens\[1\]"),
    (range(-1, 5), r"tokens\[0\] is -1"),
    (np.array([3, -7]), r"tokens\[1\] is -7"),
    (np.array([2**32]), r"tokens\[0\] is 4294967296"),
    (np.array([2**63], dtype=np.uint64), "9223372036854775808"),
    (np.zeros((2, 2), np.uint32), "2 dimensions; allowed: 1"),
    (np.array(5, np.uint32), "0 dimensions"),
    (np.zeros(3), 'format "d"'),
    (np.zeros(3, bool), r'format "\?"'),
    (np.zeros(3, ">u4"), 'format ">I"'),
    (np.zeros(3, "datetime64[s]"), "datetime64|buffer|type"),
    (np.array([1, 2], object), 'format "O"'),
    (b"abcd", r"cast\('I'\)"),
    ("abcd", "of type str"),
    (5, "of type int"),
    (None, "of type NoneType"),
    ({1, 2}, "of type set"),
    (iter([1]), "of type list_iterator"),
]


@pytest.mark.parametrize(("tokens", "message"), REFUSED)
def test_unusable_tokens_are_refused_by_name(tokens: Any, message: str) -> None:
    with pytest.raises(InvalidTokens, match=message) as caught:
        chunk(tokens)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min": 63}, "min is 63; allowed: at least 64"),
        ({"min": -1}, "min is -1; allowed: 0 to"),
        ({"avg": 65}, r"avg is 65; allowed: at least min \+ 2"),
        ({"max": 127}, "max is 127; allowed: at least avg"),
        ({"max": 2**20 + 1}, "at most 1048576"),
        ({"secret": 2**32}, "secret is 4294967296"),
        ({"min": 2**32 - 1}, "avg is 128"),
    ],
)
def test_parameters_out_of_range_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidParams, match=message):
        ChunkParams(**arguments)


def test_parameters_are_values() -> None:
    params = ChunkParams(min=70, avg=200, max=900, secret=12345)
    assert (params.min, params.avg, params.max, params.secret) == (70, 200, 900, 12345)
    assert pickle.loads(pickle.dumps(params)) == copy.deepcopy(params) == params
    assert len({params, ChunkParams(70, 200, 900, 12345), ChunkParams()}) == 2
    assert "12345" not in repr(params), "the secret stays out of logs"
    with pytest.raises(AttributeError):
        params.min = 5  # type: ignore[misc]
    with pytest.raises(TypeError):
        ChunkParams(min="64")  # type: ignore[arg-type]


def test_a_secret_moves_the_cuts() -> None:
    plain, secret = chunk(TEXT).bounds, chunk(TEXT, ChunkParams(secret=1)).bounds
    assert len(set(plain) & set(secret)) < len(plain) // 4
