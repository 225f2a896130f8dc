"""The attention kernel's barrier protocol: no slot is read early, late or for ever waited on."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from reference.mla_barriers import Model, ProtocolError

UNITS = st.lists(st.sampled_from([0, 1, 1, 1, 2, 3, 5]), min_size=1, max_size=5)


@given(seed=st.integers(0, 2**31), cluster=st.sampled_from([1, 2]), units=UNITS)
@settings(max_examples=40, deadline=None)
def test_every_reader_finds_what_it_came_for(seed, cluster, units):
    Model(seed, cluster, units).run()


def fails(seed: int) -> bool:
    try:
        Model(seed, 2, [2, 2, 2, 2], early_queries=True).run()
    except ProtocolError:
        return True
    return False


def test_the_model_catches_queries_given_back_while_they_are_read():
    assert any(fails(seed) for seed in range(200))
