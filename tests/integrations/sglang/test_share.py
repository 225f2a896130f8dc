"""Requests that borrow pages: random sessions on SGLang's own parts, and whole engines."""

from __future__ import annotations

import functools
import json
from typing import Any

import hosts
import pytest

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(1800)]


# Releases that differ in how a request's rows are given back.
FREEING = ("0.5.16", "0.5.19", "0.5.20", "0.5.21", "0.5.23")
REST = ("0.5.17", "0.5.18", "0.5.22") if hosts.EVERYTHING else ()


@pytest.mark.parametrize("version", [*FREEING, *REST])
def test_random_sessions_read_what_they_should_and_leave_nothing_behind(version: str) -> None:
    done = hosts.run(version, hosts.HERE / "driver" / "share_fuzz.py", "150")
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("FACTS ")]
    found = [json.loads(line.removeprefix("FACTS ")) for line in lines]
    assert len(found) == 3
    for one in found:
        assert one["lies"] == one["shallow"] == 0, one
        assert not one["broken"], one
        assert one["fallback"].keys() <= {"exact", "lending"}, one
        assert one["fallback"]["lending"] == one["refused"] > 3, one
        assert one["borrowed"] > 5000, one
        assert one["evicted"] > 3, one
        assert min(one["ends"]) > 2, one
    for name in ("again", "next_turns", "batches_of_borrowers"):
        assert sum(one[name] for one in found) > 3, name
    assert sum(one["fallback"].get("exact", 0) for one in found) > 3
    # Rows behind a prefix two approximations deep are as deep, whatever they borrow.
    assert "DEPTHS [2]" in done.stdout


def facts(version: str, ranks: int = 1) -> dict[str, Any]:
    found = hosts.served(version, *_engine(version, ranks))
    return found["share"] | {"counts": found["counts"]}


@functools.cache
def _engine(version: str, ranks: int) -> tuple[hosts.Done, dict[str, Any]]:
    engine = {
        "version": version,
        "page_size": 64,
        "chunk": -1 if version == hosts.ENDS[0] else 512,
        "overlap": True,
        "pool": 8192 - 64,
        "scenarios": ["share"],
        "environment": {
            "IRMINSUL_REUSE": "share",
            "IRMINSUL_TEST_MOVE": "moved-",
            "IRMINSUL_MIN_SPAN": "8",
            "TRITON_INTERPRET": "1",
            # SGLang's own sums and ownership checks, after every step.
            "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
            "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",
        },
        "arguments": {"attention_backend": "irminsul", "dtype": "float32", "tp_size": ranks},
    }
    return hosts._drive(engine)


@pytest.mark.parametrize("version", hosts.ENDS)
class TestEngines:
    """The same requests, moved and borrowed, in fp32 where both give the same tokens."""

    def test_answers_are_those_over_moved_rows(self, version: str) -> None:
        moved, lent = facts(version)["moved"], facts(version)["lent"]
        for name in ("sessions", "evicted", "aborted"):
            assert lent[name]["tokens"] == moved[name]["tokens"], name

    def test_sessions_hold_the_document_once(self, version: str) -> None:
        moved, lent = facts(version)["moved"]["sessions"], facts(version)["lent"]["sessions"]
        assert lent["cached"] == moved["cached"]
        assert min(lent["cached"]) >= 850
        # Four sessions of 1,000 tokens each: the lender's 960 and four times a few pages.
        assert moved["held"] > 4 * 900
        assert lent["held"] < 960 + 4 * 6 * 64
        assert facts(version)["counts"]["borrowed_tokens"] > 5000

    def test_the_next_turn_finds_what_the_last_one_computed(self, version: str) -> None:
        turn = facts(version)["lent"]["turn"]
        assert turn["cached"] >= turn["prompt"] - 64 - 30 - 7

    def test_a_lender_survives_what_would_evict_it(self, version: str) -> None:
        assert facts(version)["lent"]["evicted"]["cached"] >= 850

    def test_an_aborted_borrower_leaves_the_others_alone(self, version: str) -> None:
        assert facts(version)["lent"]["aborted"]["end"] == "abort"

    def test_nothing_is_held_at_the_end(self, version: str) -> None:
        for kind in ("moved", "lent"):
            assert facts(version)[kind]["idle"] == 0
            assert facts(version)[kind]["flushed"] == 0
        assert facts(version)["counts"]["fallback"] == {}


@pytest.mark.skipif(not hosts.EVERYTHING, reason="two more engines; IRMINSUL_TEST_GRID=1 runs them")
@pytest.mark.parametrize("version", hosts.ENDS)
def test_two_ranks_lend_alike(version: str) -> None:
    found = facts(version, ranks=2)
    moved, lent = found["moved"], found["lent"]
    for name in ("sessions", "evicted", "aborted"):
        assert lent[name]["tokens"] == moved[name]["tokens"], name
    assert lent["sessions"]["held"] < 960 + 4 * 6 * 64 < moved["sessions"]["held"]
    assert lent["idle"] == lent["flushed"] == 0
    assert found["counts"]["borrowed_tokens"] > 5000
    assert found["counts"]["fallback"] == {}


def storm(version: str) -> dict[str, Any]:
    found = hosts.served(version, *_storm(version))
    return found["share_storm"] | {"counts": found["counts"]}


@functools.cache
def _storm(version: str) -> tuple[hosts.Done, dict[str, Any]]:
    checks = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1"}
    checks["SGLANG_CHECK_KV_PAGE_INVARIANTS"] = "1"
    retract = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "25"}
    share = {"IRMINSUL_REUSE": "share", "IRMINSUL_MIN_SPAN": "8", "TRITON_INTERPRET": "1"}
    return hosts._drive(
        {
            "version": version,
            "page_size": 64,
            "chunk": 256,
            "overlap": True,
            "pool": 3072 - 64,
            "scenarios": ["share_storm"],
            "environment": {**share, **checks, **retract},
            "arguments": {"attention_backend": "irminsul", "schedule_conservativeness": 0.05},
        }
    )


@pytest.mark.skipif(not hosts.EVERYTHING, reason="two more engines; IRMINSUL_TEST_GRID=1 runs them")
@pytest.mark.parametrize("version", hosts.ENDS)
def test_a_pool_too_small_for_its_borrowers(version: str) -> None:
    seen = storm(version)
    assert seen["answers"] + seen["aborted"] >= 20
    assert seen["retractions"] > 0
    assert seen["too_many"] == []
    assert seen["counts"]["borrowed_tokens"] > 2000
    assert seen["counts"]["fallback"] == {}


REFUSED = {
    "backend": "--attention-backend irminsul",
    "decode": "irminsul and flashmla",
    "page": "--page-size 64",
    "tables": "no tables",
    "parallel": "--enable-dp-attention",
    "events": "--kv-events-config",
    "tiers": "IRMINSUL_HOST_BYTES",
    "release": "use 0.5.16 to 0.5.23",
}


@pytest.mark.parametrize("version", hosts.ENDS)
def test_what_cannot_borrow_is_refused_by_name(version: str) -> None:
    done = hosts.run(version, hosts.HERE / "driver" / "share_refusals.py")
    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said.pop("nothing") == ""
    assert said.keys() == REFUSED.keys()
    for name, sentence in said.items():
        assert sentence.startswith("IRMINSUL_REUSE=share cannot serve this engine"), name
        assert REFUSED[name] in sentence, sentence
        assert sentence.endswith("IRMINSUL_REUSE=copy moves rows instead."), name
