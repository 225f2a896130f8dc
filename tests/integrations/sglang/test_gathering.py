"""How long the first request of a burst waits for the others, on a clock that tests set."""

from __future__ import annotations

from irminsul.integrations.sglang.admission.gathering import MEMORY, MOST_GAPS, Gathering

GAP = 0.002


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def gathering(most: int, gap: float = GAP) -> tuple[Gathering, Clock]:
    clock = Clock()
    made = Gathering(gap, clock)
    made.saw(most)
    return made, clock


def test_it_waits_until_all_clients_are_there() -> None:
    made, clock = gathering(8)
    for waiting in range(1, 8):
        assert made.waits(waiting)
        clock.now += GAP / 2
    assert not made.waits(8)


def test_a_gap_ends_the_burst() -> None:
    made, clock = gathering(8)
    assert made.waits(1)
    clock.now += GAP * 0.9
    assert made.waits(2)
    clock.now += GAP * 0.9
    assert made.waits(2)
    clock.now += GAP * 0.2
    assert not made.waits(2)


def test_a_burst_without_end_is_cut() -> None:
    made, clock = gathering(1000)
    began, waiting = clock.now, 1
    while made.waits(waiting):
        clock.now += GAP * 0.5
        waiting += 1
    assert MOST_GAPS * GAP <= clock.now - began < (MOST_GAPS + 1) * GAP


def test_the_next_burst_is_waited_for_afresh() -> None:
    made, clock = gathering(8)
    assert made.waits(1)
    clock.now += GAP * 2
    assert not made.waits(1)
    made.saw(8)
    clock.now += 0.1
    assert made.waits(1)


def test_clients_of_long_ago_are_not_expected() -> None:
    made, clock = gathering(8)
    clock.now += MEMORY * 1.1
    assert not made.waits(1)
    made.saw(2)
    assert made.waits(1)
    assert not made.waits(2)


def test_fewer_clients_do_not_shorten_the_memory_of_more() -> None:
    made, clock = gathering(8)
    clock.now += MEMORY * 0.5
    made.saw(2)
    assert made.waits(3)


def test_no_gap_waits_for_nobody() -> None:
    made, _ = gathering(8, gap=0.0)
    assert not made.waits(1)
