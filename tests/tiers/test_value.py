"""Values: what is written is read back, and whatever was touched since is rejected."""

from __future__ import annotations

import importlib.util
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers.mooncake_store import chunk, space
from tiers.test_keys import VECTORS

pytest.importorskip("xxhash", reason="values need xxhash (extra irminsul-kv[mooncake])")

from irminsul import Namespace
from irminsul.errors import InvalidParams, InvalidTensor
from irminsul.tiers import ChunkRows, ChunkSpace, Rejected, RowLayout
from irminsul.tiers.value import _HEAD, _checksum, decode, encode_into, encoded_bytes

REASONS = {"size", "magic", "version", "checksum", "namespace", "layout", "tokens", "range"}


def encoded(part: ChunkRows) -> np.ndarray[Any, np.dtype[np.uint8]]:
    value = np.empty(encoded_bytes(part.ref), dtype=np.uint8)
    encode_into(part, value)
    return value


def test_the_golden_file_is_what_its_script_makes() -> None:
    folder = Path(__file__).parents[1] / "golden"
    spec = importlib.util.spec_from_file_location("make_tiers", folder / "make_tiers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (folder / "tiers.json").read_text() == module.render()


@pytest.mark.parametrize("vector", VECTORS)
def test_values_are_frozen(vector: dict[str, Any]) -> None:
    where = ChunkSpace(Namespace(*vector["namespace"]), RowLayout(*vector["layout"]))
    ref = where.ref(vector["tokens"])
    _, layers, row_bytes = vector["layout"]
    rows = np.frombuffer(bytes.fromhex(vector["rows"]), dtype=np.uint8)
    part = ChunkRows(
        ref,
        vector["base_position"],
        vector["hops"],
        vector["depth"],
        rows.reshape(layers, len(ref.tokens), row_bytes),
    )
    assert encoded(part).tobytes().hex() == vector["value"]


@given(st.integers(0, 10_000), st.integers(1, 200), st.integers(1, 5), st.integers(1, 130))
def test_roundtrip(seed: int, tokens: int, layers: int, row_bytes: int) -> None:
    part = chunk(space("t", layers, row_bytes), seed, tokens, base=seed * 2**40)
    back = decode(part.ref, encoded(part))
    assert back.ref is part.ref
    assert (back.base_position, back.hops, back.depth) == (part.base_position, 0, part.depth)
    assert np.array_equal(back.rows, part.rows)


PART = chunk(space("t", 2, 24), 1, tokens=70)
VALUE = encoded(PART)


@settings(max_examples=300)
@given(st.integers(0, len(VALUE) * 8 - 1))
def test_any_flipped_bit_is_rejected(bit: int) -> None:
    value = VALUE.copy()
    value[bit // 8] ^= 1 << (bit % 8)
    with pytest.raises(Rejected) as caught:
        decode(PART.ref, value)
    assert caught.value.reason in REASONS


@given(st.integers(0, len(VALUE) + 64))
def test_any_other_length_is_rejected(length: int) -> None:
    value = np.resize(VALUE, length)
    if length == len(VALUE):
        decode(PART.ref, value)
        return
    with pytest.raises(Rejected) as caught:
        decode(PART.ref, value)
    assert caught.value.reason == "size"


@given(st.binary(min_size=len(VALUE), max_size=len(VALUE)))
def test_noise_is_rejected(noise: bytes) -> None:
    with pytest.raises(Rejected):
        decode(PART.ref, np.frombuffer(noise, dtype=np.uint8))


def sealed(value: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Give a changed value the checksum of its change, as malice or a mistake would."""
    value[_HEAD.size : _HEAD.size + 16] = np.frombuffer(_checksum(value), dtype=np.uint8)
    return value


def forged(offset: int, field: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    value = VALUE.copy()
    value[offset : offset + len(field)] = np.frombuffer(field, dtype=np.uint8)
    return sealed(value)


@pytest.mark.parametrize(
    ("offset", "field", "reason"),
    [
        (0, b"X", "magic"),
        (8, struct.pack("<I", 2), "version"),
        (12, struct.pack("<I", 64), "layout"),
        (16, b"\0" * 32, "namespace"),
        (48, struct.pack("<Q", 1 << 62), "range"),
        (64, struct.pack("<I", 71), "layout"),
        (68, struct.pack("<I", 3), "layout"),
        (72, struct.pack("<I", 25), "layout"),
        (76, struct.pack("<I", 1), "layout"),
        (96, b"T", "layout"),
        (96 + len("test-rows"), b"\xff\xff", "tokens"),
    ],
)
def test_a_good_checksum_does_not_help(offset: int, field: bytes, reason: str) -> None:
    with pytest.raises(Rejected) as caught:
        decode(PART.ref, forged(offset, field))
    assert caught.value.reason == reason


def test_another_tenants_value_is_rejected() -> None:
    theirs = chunk(space("other", 2, 24), 1, tokens=70)
    with pytest.raises(Rejected) as caught:
        decode(PART.ref, encoded(theirs))
    assert caught.value.reason == "namespace"


def test_the_target_must_fit() -> None:
    with pytest.raises(InvalidTensor, match="target must be"):
        encode_into(PART, np.empty(len(VALUE) + 1, dtype=np.uint8))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"rows": PART.rows[:1]}, InvalidTensor),
        ({"rows": PART.rows.astype(np.int8)}, InvalidTensor),
        ({"rows": np.asfortranarray(PART.rows)}, InvalidTensor),
        ({"base_position": -1}, InvalidParams),
        ({"base_position": 1 << 62}, InvalidParams),
        ({"hops": -1}, InvalidParams),
        ({"depth": 1 << 32}, InvalidParams),
    ],
)
def test_bad_rows_are_refused(changes: dict[str, Any], error: type[Exception]) -> None:
    fields: dict[str, Any] = {
        "ref": PART.ref,
        "base_position": 0,
        "hops": 0,
        "depth": 0,
        "rows": PART.rows,
        **changes,
    }
    with pytest.raises(error):
        ChunkRows(**fields)
