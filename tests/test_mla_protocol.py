"""The attention kernel's barrier protocol: no slot is read early, late or for ever waited on."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.barrier_events import ProtocolError
from reference.mla_barriers import Model

UNITS = st.lists(st.sampled_from([0, 1, 1, 1, 2, 3, 5]), min_size=1, max_size=5)


@given(seed=st.integers(0, 2**31), late=st.booleans(), units=UNITS)
@settings(max_examples=40, deadline=None)
def test_every_reader_finds_what_it_came_for(seed, late, units):
    Model(seed, units, late=late).run()


def fails(seed: int, mutant: str) -> bool:
    late = seed % 2 == 0 or mutant in ("early_rope", "early_turn")
    try:
        Model(seed, [2, 2, 21, 18, 2], late=late, **{mutant: True}).run()
    except ProtocolError:
        return True
    return False


MUTANTS = [
    "early_queries",
    "helper_waits",
    "tiles_over",
    "early_rope",
    "early_turn",
    "no_p_wait",
    "no_clean_wait",
]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_model_catches(mutant):
    assert any(fails(seed, mutant) for seed in range(400))
