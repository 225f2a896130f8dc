"""Salts and keys that are joined into one string never meet another pair's."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import hosts
import pytest
from hypothesis import given
from hypothesis import strategies as st
from irminsul import Namespace
from irminsul.integrations.sglang.tree import tenancy

keys = st.none() | st.text("ab:-0123\0", max_size=6) | st.builds(tenancy._MARK.__add__, st.text())


def canonical(pair: tuple[str | None, str | None]) -> tuple[str, str]:
    return pair[0] or "", pair[1] or ""


@given(st.tuples(keys, keys), st.tuples(keys, keys))
def test_only_equal_pairs_give_equal_keys(
    one: tuple[str | None, str | None], other: tuple[str | None, str | None]
) -> None:
    same = tenancy.joined(*one) == tenancy.joined(*other)
    assert same == (canonical(one) == canonical(other))


def test_a_salt_that_reads_like_another_pair() -> None:
    made = {tenancy.joined("ab", "c"), tenancy.joined("a", "bc"), tenancy.joined(None, "abc")}
    assert len(made | {tenancy.joined("abc", None), tenancy.joined(None, "2:abc")}) == 5
    # A client that sends the joined form as its own key does not get into it.
    forged = tenancy.joined("ab", "c")
    assert tenancy.joined(None, forged) != forged


def test_a_key_alone_stays_as_it_is() -> None:
    assert tenancy.joined(None, "tenant") == "tenant"
    assert tenancy.joined("", "") is None


@given(st.tuples(keys, keys), st.tuples(keys, keys))
def test_only_equal_fields_give_one_tenant(
    one: tuple[str | None, str | None], other: tuple[str | None, str | None]
) -> None:
    assert (tenancy.tenant(*one) == tenancy.tenant(*other)) == (one == other)


def test_a_key_of_any_length_makes_a_namespace() -> None:
    long = "k" * 100_000
    tenants = {
        tenancy.tenant(*pair)
        for pair in [(long, None), (None, long), (long, "s"), (long + "k", None), ("k", None)]
    }
    assert len(tenants) == 5
    assert all(len(tenant) <= 256 for tenant in tenants)
    assert len({Namespace(tenant=tenant) for tenant in tenants}) == 5


def stock(serving: Any, request: Any) -> str:
    if not isinstance(request.cache_salt, str):
        raise TypeError("Value of cache_salt must be a string")
    return str(request.cache_salt + request.extra_key)


@pytest.mark.parametrize("backend", ["irminsul", None])
def test_only_servers_with_irminsul_are_changed(backend: str | None) -> None:
    arguments = SimpleNamespace(radix_cache_backend=backend)
    serving = SimpleNamespace(tokenizer_manager=SimpleNamespace(server_args=arguments))
    request = SimpleNamespace(cache_salt="ab", extra_key="c")
    answer = tenancy.around_extra_key(stock, serving, request, "irminsul")
    assert (answer == "abc") == (backend is None)


def test_values_that_sglang_refuses_are_refused() -> None:
    arguments = SimpleNamespace(radix_cache_backend="irminsul")
    serving = SimpleNamespace(tokenizer_manager=SimpleNamespace(server_args=arguments))
    request = SimpleNamespace(cache_salt=["ab"], extra_key="c")
    with pytest.raises(TypeError, match="cache_salt"):
        tenancy.around_extra_key(stock, serving, request, "irminsul")


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", ["0.5.16", "0.5.17"])
def test_the_http_layer_that_joins_is_hooked(version: str) -> None:
    done = hosts.run(version, hosts.HERE / "driver" / "salts.py")
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["stock"][0] == found["stock"][1] == "abc"
    assert found["hooked"][0] != found["hooked"][1]
    assert found["key_alone"] == "tenant"
    assert found["required"]


@pytest.mark.sglang
@pytest.mark.parametrize("version", ["0.5.18", "0.5.23"])
def test_a_version_that_keeps_salts_apart_is_left_alone(version: str) -> None:
    source = hosts.require(version) / "sglang/srt/entrypoints/openai/serving_base.py"
    assert "_compute_extra_key" not in source.read_text()
