"""Whatever codes and bytes come back, a caller gets the rows that were written or a miss."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers.mooncake_store import chunk, space

pytest.importorskip("xxhash", reason="values need xxhash (extra irminsul-kv[mooncake])")

from irminsul.tiers import ChunkRef, Collected, Counts, Ticket
from irminsul.tiers.mooncake.calls import Exists, Get, Put
from irminsul.tiers.mooncake.meter import Meter
from irminsul.tiers.value import encode_into, encoded_bytes

PARTS = [chunk(space("calls"), seed, tokens=64 + seed) for seed in range(4)]
REFS = [part.ref for part in PARTS]
METER = Meter(lambda size, seconds: None)

# What happened to one value on its way: the code, and a change to its bytes.
faults = st.one_of(
    st.just(("good", 0, 0)),
    st.tuples(
        st.just("code"), st.sampled_from([-1, -200, -600, -704, -800, -900, -901]), st.just(0)
    ),
    st.tuples(st.just("short"), st.integers(0, 20_000), st.just(0)),
    st.tuples(st.just("flip"), st.integers(0, 10**6), st.integers(0, 7)),
    st.tuples(st.just("swap"), st.integers(0, 3), st.just(0)),
)


@given(st.lists(faults, min_size=4, max_size=4))
def test_only_true_rows_come_through(injected: list[tuple[str, int, int]]) -> None:
    counts, rejected, found = Counts(), [], Collected()
    ticket = Ticket(4, False, 60.0)
    call = Get(REFS, ticket, 0, counts, found, rejected.append, METER)
    views = [np.empty(encoded_bytes(ref), dtype=np.uint8) for ref in REFS]
    codes = []
    for index, (fault, number, bit) in enumerate(injected):
        view, code = views[index], len(views[index])
        encode_into(PARTS[index], view)
        if fault == "code":
            view[:] = 0
            code = number
        elif fault == "short":
            code = number
        elif fault == "flip":
            view[number % len(view)] ^= 1 << bit
        elif fault == "swap":
            other = np.empty(encoded_bytes(REFS[number]), dtype=np.uint8)
            encode_into(PARTS[number], other)
            view[:] = np.resize(other, len(view))
        codes.append(code)
    call.settle(codes, views)
    answers = ticket.result(0)
    for index, (fault, number, _) in enumerate(injected):
        unharmed = (
            fault == "good"
            or (fault == "swap" and number == index)
            or (fault == "short" and number == len(views[index]))
        )
        assert answers[index] == unharmed
        if unharmed:
            assert np.array_equal(found[REFS[index].key].rows, PARTS[index].rows)
        else:
            assert REFS[index].key not in found
    snapshot = counts.snapshot()
    misses = sum(n for name, n in snapshot.items() if name not in ("hits", "bytes_in"))
    assert misses == answers.count(False)
    bad = sum(n for name, n in snapshot.items() if name.startswith("rejected"))
    assert len(rejected) == bad


@pytest.mark.parametrize("codes", [None, [], [1], [1] * 9])
def test_a_failed_call_is_all_misses(codes: list[int] | None) -> None:
    counts = Counts()
    ticket = Ticket(4, False, 60.0)
    Exists(REFS, ticket, 0, counts).settle(codes, [])
    assert ticket.result(0) == [False] * 4
    assert counts["exists_failed"] == 4


def test_late_rows_are_received_and_counted_but_not_answered() -> None:
    counts, found = Counts(), Collected()
    ticket = Ticket(1, False, 0.0)
    call = Get(REFS[:1], ticket, 0, counts, found, lambda ref: None, METER)
    view = np.empty(encoded_bytes(REFS[0]), dtype=np.uint8)
    encode_into(PARTS[0], view)
    call.settle([len(view)], [view])
    assert ticket.result() == [False]
    assert REFS[0].key in found
    assert counts["late"] == 1


def test_cancelled_rows_are_not_received() -> None:
    found = Collected()
    ticket = Ticket(1, False, 60.0)
    ticket.cancel()
    call = Get(REFS[:1], ticket, 0, Counts(), found, lambda ref: None, METER)
    view = np.empty(encoded_bytes(REFS[0]), dtype=np.uint8)
    encode_into(PARTS[0], view)
    call.settle([len(view)], [view])
    assert not found


def test_put_lets_go_of_rows_once_they_are_written() -> None:
    counts = Counts()
    ticket = Ticket(4, False, 60.0)
    call = Put(PARTS, ticket, 0, counts)
    assert call.held_bytes == sum(part.rows.nbytes for part in PARTS)
    views = [np.empty(encoded_bytes(ref), dtype=np.uint8) for ref in REFS]
    call.fill(views)
    call.settle([0, -200, -800, 0], views)
    assert ticket.result(0) == [True, False, False, True]
    assert (counts["stored"], counts["no_space"], counts["put_failed"]) == (2, 1, 1)


def test_references_are_named_by_their_keys() -> None:
    call = Exists(REFS, None, 0, Counts())
    assert call.request()["keys"] == [ref.key.hex() for ref in REFS]
    assert isinstance(REFS[0], ChunkRef)
