"""A link is measured by what it carries while it is busy, not by how long each fetch waits."""

from __future__ import annotations

import numpy as np
from irminsul.tiers import Collected, Counts, Ticket
from irminsul.tiers.mooncake.calls import Get
from irminsul.tiers.mooncake.meter import Meter
from tiers.mooncake_store import chunk, space

MIB = 1 << 20


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _meter() -> tuple[Meter, Clock, list[tuple[int, float]]]:
    clock, seen = Clock(), list[tuple[int, float]]()
    return Meter(lambda size, seconds: seen.append((size, seconds)), clock), clock, seen


def test_fetches_side_by_side_share_their_time() -> None:
    meter, clock, seen = _meter()
    for _ in range(4):
        meter.begin()
    clock.now = 0.008
    for _ in range(4):
        meter.end(8 * MIB)
    assert seen == [(32 * MIB, 0.008)]
    clock.now = 5.0  # idle time is nobody's
    meter.begin()
    clock.now = 5.001
    meter.end(MIB)
    assert seen[1][0] == MIB
    assert abs(seen[1][1] - 0.001) < 1e-9


def test_a_link_that_is_never_idle_is_reported_on() -> None:
    meter, clock, seen = _meter()
    meter.begin()
    for _ in range(20):
        meter.begin()
        clock.now += 0.02
        meter.end(MIB)
    assert len(seen) == 6
    assert all(size == 3 * MIB and abs(seconds - 0.06) < 1e-9 for size, seconds in seen)


def test_failures_say_nothing_but_their_time_counts() -> None:
    meter, clock, seen = _meter()
    meter.begin()
    clock.now = 0.001
    meter.end(0)
    assert seen == []
    meter.begin()
    meter.begin()
    clock.now = 0.011
    meter.end(0)
    clock.now = 0.021
    meter.end(MIB)
    assert seen[0][0] == MIB
    assert abs(seen[0][1] - 0.020) < 1e-9


def test_many_small_values_are_not_metered() -> None:
    meter, clock, seen = _meter()
    for layers, tokens, metered in ((1, 32, False), (8, 128, True)):
        where = space("meter", layers=layers, row_bytes=1152 if metered else 68)
        refs = [chunk(where, seed, tokens=tokens).ref for seed in range(100)]
        ticket = Ticket(len(refs), False, 60.0)
        call = Get(refs, ticket, 0, Counts(), Collected(), lambda ref: True, meter)
        call.fill([])
        clock.now += 0.002
        # Sizes come back; that the bytes are no values costs nothing here.
        call.settle(call.sizes, [np.zeros(size, dtype=np.uint8) for size in call.sizes])
        assert sum(call.sizes) > 200_000
        assert bool(seen) == metered
