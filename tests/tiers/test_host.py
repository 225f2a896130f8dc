"""The host tier keeps what fits, to the byte, and gives back what was put."""

from __future__ import annotations

import gc
import itertools
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from irminsul.errors import InvalidParams
from irminsul.tiers import ChunkRef, Collected, HostTier, Lease
from irminsul.tiers.arena import ALIGNMENT, Arena
from irminsul.tiers.host import ENTRY_OVERHEAD
from tiers.mooncake_store import chunk, space

MIB = 1 << 20
WHERE = space("host", layers=4, row_bytes=256)
# About 64 KiB of rows each, so that one MiB holds fewer than sixteen.
PARTS = [chunk(WHERE, seed, tokens=64) for seed in range(40)]


def test_what_is_put_is_got() -> None:
    tier = HostTier(4 * MIB)
    assert tier.put(PARTS[:5]).result() == [True] * 5
    found = Collected()
    refs = [part.ref for part in PARTS[:6]]
    assert tier.get(refs, 0.0, found).result() == [True] * 5 + [False]
    assert tier.exists(refs).result() == [True] * 5 + [False]
    for part in PARTS[:5]:
        assert np.array_equal(found[part.ref.key].rows, part.rows)
        assert found[part.ref.key].depth == part.depth


def test_the_rows_are_the_tiers_own() -> None:
    tier = HostTier(MIB)
    part = chunk(WHERE, 100)
    tier.put([part])
    kept = part.rows.copy()
    part.rows[:] = 0
    found = Collected()
    tier.get([part.ref], 0.0, found)
    assert np.array_equal(found[part.ref.key].rows, kept)


def test_accounting_is_exact() -> None:
    tier = HostTier(MIB)
    assert tier.used_bytes == 0
    tier.put([PARTS[0]])
    ids = PARTS[0].ref.tokens.nbytes
    assert tier.used_bytes == PARTS[0].rows.nbytes + ids + ENTRY_OVERHEAD
    assert tier.discard(PARTS[0].ref)
    assert not tier.discard(PARTS[0].ref)
    assert tier.used_bytes == 0


def test_asked_for_text_outlives_new_text() -> None:
    tier = HostTier(MIB)
    hot = PARTS[:4]
    tier.put(hot)
    for part in PARTS[4:]:
        tier.get([kept.ref for kept in hot], 0.0, lambda _: None)
        tier.put([part])
    assert all(part.ref in tier for part in hot)
    assert tier.counts["evicted"] > 20


def test_larger_than_the_tier_is_refused_and_changes_nothing() -> None:
    tier = HostTier(MIB)
    tier.put(PARTS[:3])
    big = chunk(space("host", 64, 4096), 1)
    assert tier.put([big]).result() == [False]
    assert tier.counts["refused"] == 1
    # Making room for what can never fit would have emptied the tier.
    assert len(tier) == 3


def test_the_same_ids_in_another_layout_are_another_chunk() -> None:
    tier = HostTier(MIB)
    other = chunk(space("host", layers=2, row_bytes=256), 1)
    assert other.ref.key == PARTS[1].ref.key
    tier.put([PARTS[1]])
    assert other.ref not in tier
    assert tier.lease(other.ref) is None
    tier.put([other])
    assert len(tier) == 2


def test_leased_rows_stay_where_they_are() -> None:
    tier = HostTier(MIB)
    tier.put([PARTS[0]])
    lease = tier.lease(PARTS[0].ref)
    assert lease is not None
    for part in PARTS[1:]:
        tier.put([part])
    assert PARTS[0].ref in tier
    assert np.array_equal(lease.chunk.rows, PARTS[0].rows)
    tier.clear()
    assert tier.used_bytes == PARTS[0].rows.nbytes + PARTS[0].ref.tokens.nbytes + ENTRY_OVERHEAD
    assert np.array_equal(lease.chunk.rows, PARTS[0].rows)
    lease.release()
    lease.release()
    assert tier.used_bytes == 0


def test_a_tier_full_of_leases_refuses() -> None:
    tier = HostTier(MIB)
    leases = []
    for part in PARTS:
        if not tier.put([part]).result()[0]:
            break
        lease = tier.lease(part.ref)
        assert lease is not None
        leases.append(lease)
    assert 10 < len(leases) < 16
    assert tier.put([PARTS[-1]]).result() == [False]
    leases[3].release()
    assert tier.put([PARTS[-1]]).result() == [True]
    assert PARTS[3].ref not in tier


def test_evictions_are_told() -> None:
    gone: list[ChunkRef] = []
    tier = HostTier(MIB, on_evict=gone.append)
    tier.put(PARTS)
    assert len(gone) == len(PARTS) - len(tier)
    tier.discard(PARTS[-1].ref)
    assert gone[-1] == PARTS[-1].ref
    tier.clear()
    assert {ref.key for ref in gone} == {part.ref.key for part in PARTS}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("plrdg"), st.integers(0, 39)), max_size=120))
def test_any_sequence_keeps_the_bound_and_the_bytes(steps: list[tuple[str, int]]) -> None:
    live: set[bytes] = set()
    tier = HostTier(MIB, on_evict=lambda ref: live.remove(ref.key))
    leases: list[Lease] = []
    for step, number in steps:
        part = PARTS[number]
        if step == "p":
            before = part.ref in tier
            if tier.put([part]).result() == [True] and not before:
                live.add(part.ref.key)
        elif step == "l" and (lease := tier.lease(part.ref)) is not None:
            leases.append(lease)
        elif step == "r" and leases:
            leases.pop(number % len(leases)).release()
        elif step == "d":
            tier.discard(part.ref)
        elif step == "g":
            tier.get(
                [part.ref],
                0.0,
                lambda got: np.testing.assert_array_equal(
                    got.rows, next(p for p in PARTS if p.ref == got.ref).rows
                ),
            )
        assert tier.used_bytes <= MIB
        assert {p.ref.key for p in PARTS if p.ref in tier} == live
        for lease in leases:
            original = next(p for p in PARTS if p.ref == lease.chunk.ref)
            assert np.array_equal(lease.chunk.rows, original.rows)
    for lease in leases:
        lease.release()
    tier.clear()
    assert tier.used_bytes == 0


def test_threads_share_it() -> None:
    tier = HostTier(MIB)
    wrong: list[str] = []

    def use(seed: int) -> None:
        random = np.random.default_rng(seed)
        for number in random.integers(0, len(PARTS), 200):
            part = PARTS[number]
            tier.put([part])
            lease = tier.lease(part.ref)
            if lease is not None:
                if not np.array_equal(lease.chunk.rows, part.rows):
                    wrong.append(part.ref.key.hex())
                lease.release()

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    tier.clear()
    assert tier.used_bytes == 0


def test_bad_capacity_is_refused() -> None:
    with pytest.raises(InvalidParams, match="capacity_bytes"):
        HostTier(1000)
    with pytest.raises(InvalidParams, match="capacity"):
        Arena(10)


def test_pinning_needs_a_gpu() -> None:
    torch = pytest.importorskip("torch", reason="pinning needs torch")
    if torch.cuda.is_available():
        tier = HostTier(MIB, pinned=True)
        assert torch.from_numpy(tier._block).is_pinned()
        return
    with pytest.raises(InvalidParams, match="pinned for a GPU"):
        HostTier(MIB, pinned=True)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 700)), max_size=80))
def test_arena_pieces_never_overlap_and_all_comes_back(steps: list[tuple[bool, int]]) -> None:
    arena = Arena(4096)
    taken: dict[int, int] = {}
    for take, number in steps:
        if take:
            offset = arena.take(number)
            if offset is not None:
                taken[offset] = max(ALIGNMENT, -(-number // ALIGNMENT) * ALIGNMENT)
        elif taken:
            offset = sorted(taken)[number % len(taken)]
            arena.give(offset)
            del taken[offset]
        edges = sorted((start, start + size) for start, size in taken.items())
        assert all(left[1] <= right[0] for left, right in itertools.pairwise(edges))
        assert all(start >= 0 and end <= 4096 for start, end in edges)
        assert arena.used == sum(taken.values())
    for offset in list(taken):
        arena.give(offset)
    assert arena.take(4096) == 0
    with pytest.raises(InvalidParams):
        arena.give(64)


def test_a_lease_that_is_collected_in_the_middle_of_a_change_changes_nothing_then() -> None:
    tier = HostTier(MIB)
    first, second = (chunk(space("lease"), seed) for seed in (1, 2))
    tier.put([first])
    lease = tier.lease(first.ref)
    assert lease is not None
    tier.discard(first.ref)
    taken, seen = tier._arena.take, list[int]()

    def take(size: int) -> int | None:
        nonlocal lease
        used = tier._arena.used
        lease = None  # the last reference: collected here, as a cycle might be
        gc.collect()
        seen.append(tier._arena.used - used)
        return taken(size)

    tier._arena.take = take  # type: ignore[method-assign]
    tier.put([second])
    assert seen == [0]
    tier.discard(second.ref)
    assert tier.used_bytes == 0
