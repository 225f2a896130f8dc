"""Every feature that must not be combined with reuse is refused, in one sentence."""

from __future__ import annotations

import functools
import json
from typing import Any

import hosts
import pytest
from irminsul.integrations.sglang import plugin

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(600)]


@functools.cache
def facts(version: str) -> dict[str, Any]:
    done = hosts.run(version, hosts.HERE / "driver" / "refusals.py")
    assert done.returncode == 0, done.stderr[-4000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("FACTS "))
    found: dict[str, Any] = json.loads(line.removeprefix("FACTS "))
    return found


@pytest.fixture(params=hosts.VERSIONS)
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    return facts(request.param)


def test_a_plain_mla_engine_is_accepted(found: dict[str, Any]) -> None:
    assert found["clean"] == []


def test_a_backend_that_says_it_takes_virtual_rows_is_accepted(found: dict[str, Any]) -> None:
    assert found["willing"] == []


def test_every_refused_feature_has_one_sentence(found: dict[str, Any]) -> None:
    assert len(found["reasons"]) > 30
    for name, sentences in found["reasons"].items():
        assert len(sentences) == 1, name
        assert sentences[0].endswith("."), name
        assert len(sentences[0]) < 160, name


def test_several_reasons_are_all_told(found: dict[str, Any]) -> None:
    assert found["several"].startswith("Unsupported: ")
    assert "sliding-window" in found["several"]
    assert "DSA" in found["several"]


def test_every_attribute_of_the_table_exists(found: dict[str, Any]) -> None:
    assert len(found["rows"]) > 20
    assert [row for row in found["rows"] if not row[1]] == []


def test_hooks_that_are_not_in_place_stop_the_start(found: dict[str, Any]) -> None:
    hooks = found["hooks"]
    assert "did not apply" in hooks["before"]
    assert hooks["applied"] == ""
    assert (
        "on sglang.srt.managers.schedule_batch.ScheduleBatch.prepare_for_extend;"
        in (hooks["one missing"])
    )


def test_registering_twice_hooks_once(found: dict[str, Any]) -> None:
    assert found["hooks"]["hooks"] == str(len(plugin.TARGETS))


@pytest.mark.parametrize("change", ["renamed", "other parameters"])
def test_a_changed_engine_is_named_in_the_error(found: dict[str, Any], change: str) -> None:
    message = found["hooks"][change]
    assert message.startswith("HostMismatch: sglang 0.5.")
    assert "ScheduleBatch.prepare_for_extend" in message
    assert "Install sglang>=" in message


def test_stock_caching_can_take_over(found: dict[str, Any]) -> None:
    assert found["stock"] == "stock cache"


@pytest.mark.parametrize(
    "kind",
    [
        "prompt_logprobs",
        "hidden_states",
        "multimodal",
        "embeddings",
        "routed_experts",
        "token_types",
        "session",
        "scoring",
    ],
)
def test_requests_that_moved_rows_cannot_serve_are_served_exactly(
    found: dict[str, Any], kind: str
) -> None:
    assert found["requests"][kind] == kind


def test_some_given_embeddings_are_embeddings(found: dict[str, Any]) -> None:
    assert found["requests"]["embeddings, some"] == "embeddings"


@pytest.mark.parametrize("kind", ["plain", "output logprobs", "output logprobs, explicit"])
def test_other_requests_are_not_refused(found: dict[str, Any], kind: str) -> None:
    assert found["requests"][kind] is None


def test_an_adapter_that_is_loaded_again_is_another_tenant(found: dict[str, Any]) -> None:
    assert found["adapters"]["reloaded_is_new"]
