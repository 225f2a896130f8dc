"""Two pools on one store: whatever is written, evicted and asked for, rows are what they say."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from irminsul import ChunkParams
from irminsul.tiers import ChunkPool, CostModel, HostTier
from tiers.mooncake_store import until
from tiers.test_pool import EAGER, LAYOUT, MIB, NAMESPACE, check, kept

STEPS = st.tuples(
    st.integers(0, 3),  # which text
    st.integers(0, 700),  # where an edit is
    st.integers(0, 90),  # how long it is
    st.integers(0, 200),  # tokens in front
    st.sampled_from(["write", "read", "evict", "lose"]),
)


@settings(max_examples=15, deadline=None)
@given(st.lists(STEPS, min_size=4, max_size=14), st.sampled_from([20, 100_000]))
def test_any_mix_of_writers_and_readers_serves_true_rows(
    steps: list[tuple[int, int, int, int, str]], vocabulary: int
) -> None:
    texts = [np.random.default_rng(seed).integers(0, vocabulary, 900) for seed in range(4)]
    shared, cost = HostTier(MIB), CostModel(**EAGER)
    params = ChunkParams(min=64, avg=96, max=256)
    writer = ChunkPool(LAYOUT, MIB, shared, cost, params=params)
    reader = ChunkPool(LAYOUT, MIB, shared, cost, params=params)
    for number, (text, at, length, head, what) in enumerate(steps):
        random = np.random.default_rng(number)
        new = random.integers(0, vocabulary, length + head)
        edited = np.concatenate([texts[text][:at], new[:length], texts[text][at + length // 2 :]])
        prompt = np.concatenate([new[length:], edited, [1]])
        if what == "write":
            kept(writer, prompt)
        elif what == "evict":
            reader.clear()
        elif what == "lose":
            for key in list(shared._entries)[:: 2 + number % 3]:
                shared.discard(shared._entries[key].chunk.ref)
        coming = reader.prefetch(NAMESPACE, prompt, [(0, len(prompt))], 5.0)
        assert coming is None or until(lambda coming=coming: coming.done, 10.0)
        if coming is not None:
            reader.admit(coming)
        check(reader, prompt)
        if what == "read":
            kept(reader, prompt)
    writer._aside.close()
    reader._aside.close()
