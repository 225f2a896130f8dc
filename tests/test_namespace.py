"""Namespaces: golden encodings, and equality by bytes."""

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from irminsul import Namespace
from irminsul.errors import InvalidParams
from reference.namespace import encode

GOLDEN = Path(__file__).parent / "golden" / "namespaces.json"
FIELDS = ("model", "kv_layout", "rope", "lora", "tenant")


def test_golden_encodings() -> None:
    for vector in json.loads(GOLDEN.read_text(encoding="utf-8")):
        named = dict(zip(FIELDS, vector["fields"], strict=True))
        assert Namespace(**named).encode().hex() == vector["encoding"]


@given(fields=st.lists(st.binary(max_size=40), min_size=5, max_size=5))
def test_encoding_agrees_with_the_reference_and_survives_pickling(fields: list[bytes]) -> None:
    namespace = Namespace(**dict(zip(FIELDS, fields, strict=True)))
    assert namespace.encode() == encode(*fields)
    assert pickle.loads(pickle.dumps(namespace)) == namespace


@given(
    a=st.lists(st.text(max_size=3), min_size=5, max_size=5),
    b=st.lists(st.text(max_size=3), min_size=5, max_size=5),
)
def test_namespaces_are_equal_exactly_when_all_fields_are(a: list[str], b: list[str]) -> None:
    left, right = Namespace(*a), Namespace(*b)
    assert (left == right) == (a == b)
    assert left == Namespace(*(field.encode() for field in a))
    assert hash(left) == hash(Namespace(*a))


def test_default_is_five_empty_fields() -> None:
    assert Namespace() == Namespace("", b"", "", "", "")
    assert Namespace().encode() == encode(b"", b"", b"", b"", b"")
    assert repr(Namespace(model="m", tenant="t")) == 'Namespace(model="m", tenant="t")'


def test_unusable_fields_are_refused() -> None:
    with pytest.raises(InvalidParams, match="length of lora is 65537; allowed: at most 65536"):
        Namespace(lora="x" * 65537)
    with pytest.raises(TypeError, match="it is 5; allowed: str or bytes"):
        Namespace(model=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="it is None; allowed: str or bytes"):
        Namespace(tenant=None)  # type: ignore[arg-type]
