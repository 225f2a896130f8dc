"""A pool fetches what others kept, in whatever chunks it lies, and waits for nothing dead."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from irminsul import Namespace, Policy
from irminsul.tiers import (
    ChunkPool,
    ChunkRef,
    ChunkRows,
    Collected,
    CostModel,
    Counts,
    HostTier,
    MooncakeTier,
    Receive,
    Ticket,
)
from numpy.typing import NDArray
from tiers.mooncake_store import Store, until
from tiers.test_pool import (
    EAGER,
    LAYOUT,
    MIB,
    NAMESPACE,
    RANDOM,
    SINKS,
    TEXT,
    check,
    kept,
    rows_of,
)


def test_another_engine_fetches_what_one_has_kept() -> None:
    shared = HostTier(8 * MIB)
    one = ChunkPool(LAYOUT, 4 * MIB, shared)
    two = ChunkPool(LAYOUT, 4 * MIB, shared, CostModel(**EAGER))
    stored = kept(one, TEXT)
    assert settled(shared)
    prompt = np.concatenate([RANDOM.integers(0, 100_000, 50), TEXT, [9]])
    assert check(two, prompt) == 0
    coming = two.prefetch(NAMESPACE, prompt, [(0, len(prompt))], 5.0)
    assert coming is not None
    assert until(lambda: coming.done, 5.0)
    assert check(two, prompt) == stored - SINKS
    assert two.prefetch(NAMESPACE, prompt, [(1000, 1200)], 5.0) is None


def test_a_rank_that_does_not_publish_keeps_for_itself_and_fetches() -> None:
    shared = HostTier(8 * MIB)
    second = ChunkPool(LAYOUT, 4 * MIB, shared, CostModel(**EAGER), publishes=False)
    stored = kept(second, TEXT)
    assert len(shared) == 0
    assert check(second, TEXT) > 0
    kept(ChunkPool(LAYOUT, 4 * MIB, shared), TEXT)
    second.clear()
    coming = second.prefetch(NAMESPACE, TEXT, [(0, len(TEXT))], 5.0)
    assert coming is not None
    assert until(lambda: coming.done, 5.0)
    second.admit(coming)
    assert check(second, np.append(TEXT, 1)) == stored - SINKS


def settled(shared: HostTier) -> bool:
    """Wait until nothing more is written behind."""
    sizes = [-1]

    def steady() -> bool:
        time.sleep(0.05)
        sizes.append(len(shared))
        return sizes[-1] == sizes[-2] > 0

    return until(steady)


def _fetched(shared: HostTier, prompt: NDArray[np.int64], **changes: bool) -> int:
    """Return how many tokens a pool that starts empty serves of `prompt`."""
    pool = ChunkPool(
        LAYOUT, 4 * MIB, shared, CostModel(**EAGER), policy=Policy(**changes), publishes=False
    )
    coming = pool.prefetch(NAMESPACE, prompt, [(0, len(prompt))], 5.0)
    assert coming is not None
    assert until(lambda: coming.done, 5.0)
    pool.admit(coming)
    return check(pool, prompt)


def test_text_in_chunks_with_other_borders_is_fetched() -> None:
    found, missed, all_of_it = 0, 0, 0
    for seed in range(6):
        random = np.random.default_rng(seed)
        text = random.integers(0, 100_000, 1500)
        shared = HostTier(8 * MIB)
        kept(ChunkPool(LAYOUT, 4 * MIB, shared), np.concatenate([text, text[:5]]))
        assert settled(shared)
        # Begins and ends elsewhere: borders of chunks are others at both ends.
        prompt = np.concatenate([random.integers(0, 100_000, 45), text[100:1400], [7] * 40])
        found += _fetched(shared, prompt)
        missed += _fetched(shared, prompt, windows=False)
        all_of_it += 1300
    assert 0.5 * all_of_it < missed < 0.88 * all_of_it
    assert found > 0.94 * all_of_it


def test_a_signpost_to_nothing_makes_way() -> None:
    shared = HostTier(8 * MIB)
    kept(ChunkPool(LAYOUT, 4 * MIB, shared), TEXT)
    assert settled(shared)
    chunks = ChunkPool(LAYOUT, 4 * MIB).chunks(NAMESPACE, TEXT, [(0, len(TEXT))])
    posts = len(shared) - len(chunks)
    assert posts > len(chunks) // 2
    for part in chunks:
        shared.discard(part.ref)
    assert _fetched(shared, TEXT) == 0
    # All that were met are gone, so that others can be put there.
    assert len(shared) < posts // 10


def test_what_does_not_pay_is_not_fetched() -> None:
    shared = HostTier(8 * MIB)
    kept(ChunkPool(LAYOUT, 4 * MIB, shared), TEXT)
    slow = ChunkPool(LAYOUT, 4 * MIB, shared, CostModel(1e3, 1e-6))
    coming = slow.prefetch(NAMESPACE, np.append(TEXT, 1), [(0, len(TEXT))], 5.0)
    assert coming is not None
    assert until(lambda: coming.done, 5.0)
    assert check(slow, np.append(TEXT, 1)) == 0


class Silent:
    """A store that answers `exists` at once and `get` never, or after `arrive`."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.gets: list[tuple[Sequence[ChunkRef], Ticket[bool], Receive]] = []

    def exists(self, refs: Sequence[ChunkRef], timeout: float) -> Ticket[bool]:
        ticket = Ticket(len(refs), False, timeout)
        for index in range(len(refs)):
            ticket.settle(index, True)
        return ticket

    def get(self, refs: Sequence[ChunkRef], timeout: float, receive: Receive) -> Ticket[bool]:
        ticket = Ticket(len(refs), False, timeout)
        self.gets.append((refs, ticket, receive))
        return ticket

    def put(self, chunks: Sequence[ChunkRows], timeout: float) -> Ticket[bool]:
        return Ticket(len(chunks), False, 0.0)

    def discard(self, ref: ChunkRef) -> bool:
        return False

    def close(self) -> None:
        pass


def test_a_silent_store_is_waited_for_no_longer_than_patience() -> None:
    pool = ChunkPool(LAYOUT, 4 * MIB, Silent(), CostModel(**EAGER))
    coming = pool.prefetch(NAMESPACE, TEXT, [(0, len(TEXT))], 0.05)
    assert coming is not None
    assert not coming.done
    began = time.monotonic()
    assert until(lambda: coming.done, 5.0)
    assert time.monotonic() - began < 1.0


def test_news_renew_patience_and_late_chunks_are_kept() -> None:
    store = Silent()
    pool = ChunkPool(LAYOUT, 4 * MIB, store, CostModel(**EAGER))
    prompt = np.append(TEXT, 1)
    coming = pool.prefetch(NAMESPACE, prompt, [(0, len(prompt))], 0.5)
    again = pool.prefetch(NAMESPACE, prompt, [(0, len(prompt))], 0.5)
    assert coming is not None
    assert again is not None
    # The second prompt waits for the first one's fetch.
    assert len(store.gets) == 1
    refs, ticket, receive = store.gets[0]
    starts = {
        part.ref.key: part.start for part in pool.chunks(NAMESPACE, prompt, [(0, len(prompt))])
    }

    def arrive(index: int) -> None:
        ref = refs[index]
        start = starts[ref.key]
        receive(ChunkRows(ref, start, 0, 0, rows_of(ref.tokens.astype(np.int64), start, 0)))
        ticket.settle(index, True)

    for index in range(4):
        time.sleep(0.2)
        assert not coming.done
        assert not again.done
        arrive(index)
    assert until(lambda: coming.done and again.done, 5.0)
    assert check(pool, prompt) == 0
    pool.admit(coming)
    before = check(pool, prompt)
    assert before == sum(len(ref.tokens) for ref in refs[:4]) - SINKS
    for index in range(4, len(refs)):
        arrive(index)
    assert check(pool, prompt) == sum(len(ref.tokens) for ref in refs) - SINKS


def test_two_pools_on_a_real_store(store: Store) -> None:
    namespace = Namespace(model="real")
    one = ChunkPool(LAYOUT, 4 * MIB, store.tier())
    two = ChunkPool(LAYOUT, 4 * MIB, store.tier(), CostModel(**EAGER))
    kept(one, TEXT, namespace)
    wanted = ChunkPool(LAYOUT, MIB).chunks(namespace, TEXT, [(0, len(TEXT))])
    refs = [part.ref for part in wanted]
    found = Collected()
    assert one.remote is not None
    assert two.remote is not None
    assert until(lambda: one.remote.counts["stored"] >= len(refs))
    assert all(two.remote.get(refs, 20.0, found).result())
    coming = two.prefetch(namespace, TEXT, [(0, len(TEXT))], 20.0)
    assert coming is not None
    assert until(lambda: coming.done)
    assert len(two.host) == len(refs) == len(found)
    one.close()
    two.close()


def test_signposts_say_nothing_of_the_links_speed(store: Store) -> None:
    namespace = Namespace(model="speed")
    text = np.random.default_rng(3).integers(0, 100_000, 1500)
    one = ChunkPool(LAYOUT, 4 * MIB, store.tier())
    kept(one, text, namespace)
    assert one.remote is not None
    # So slow that no chunk pays: signposts are all that is fetched.
    cost = CostModel(1e3, 1e-2)
    tier = MooncakeTier(store.settings(), cost.transferred)
    assert tier.wait_until_up(30.0)
    two = ChunkPool(LAYOUT, 4 * MIB, tier, cost)
    before = cost.speeds
    prompt = np.concatenate([RANDOM.integers(0, 100_000, 45), text[40:], [1] * 90])

    def read() -> bool:
        coming = two.prefetch(namespace, prompt, [(0, len(prompt))], 20.0)
        assert coming is not None
        return until(lambda: coming.done) and tier.counts["bytes_in"] > 0

    assert until(read)
    assert len(two.host) == 0
    assert cost.speeds == before
    one.close()
    two.close()
