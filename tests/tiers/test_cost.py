"""The cost model fetches what arrives sooner than it is computed, by what it has measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from irminsul.errors import InvalidParams
from irminsul.tiers import Candidate, CostModel

MIB = 1 << 20


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_only_what_is_faster_is_fetched() -> None:
    # 100 MiB/s against 1 ms a token: a token may have up to about 100 KiB.
    model = CostModel(100 * MIB, 1e-3, margin=1.0)
    cheap, dear = Candidate(MIB, 128), Candidate(40 * MIB, 128)
    assert model.choose([cheap, dear, cheap], 1.0) == [0, 2]


def test_the_budget_cuts_from_the_right() -> None:
    model = CostModel(100 * MIB, 1.0)
    assert model.choose([Candidate(MIB, 100)] * 10, 0.055) == [0, 1, 2, 3, 4]


def test_measurements_move_the_choice() -> None:
    clock = Clock()
    model = CostModel(1000 * MIB, 1e-3, clock=clock)
    part = [Candidate(10 * MIB, 128)]
    assert model.choose(part, 1.0) == [0]
    for _ in range(30):
        model.transferred(MIB, 1.0)
    assert model.speeds.link_bytes_per_s < 1.1 * MIB
    assert model.choose(part, 60.0) == []
    for _ in range(60):
        model.computed(1, 1.0)
    assert model.choose(part, 60.0) == [0]


def test_a_slow_link_is_tried_again_now_and_then() -> None:
    clock = Clock()
    model = CostModel(MIB, 1e-6, probe_s=10.0, clock=clock)
    part = [Candidate(MIB, 128)] * 3
    assert model.choose(part, 0.01) == []
    clock.now = 11.0
    assert model.choose(part, 0.01) == [0]
    assert model.choose(part, 0.01) == []
    # A thousand times what it was believed to be is learned from a few fetches.
    slow = CostModel(MIB, 1e-3)
    for _ in range(20):
        slow.transferred(1000 * MIB, 1.0)
    assert slow.speeds.link_bytes_per_s > 900 * MIB


def test_break_even() -> None:
    model = CostModel(1e9, 2e-5)
    # 27 layers of 1,152 bytes at 50,000 tokens a second.
    assert model.speeds.break_even_bytes_per_s(27 * 1152) == pytest.approx(1.5552e9)


@given(
    st.lists(st.tuples(st.integers(1, 10**9), st.integers(1, 512)), max_size=20),
    st.floats(1e3, 1e11),
    st.floats(1e-7, 1.0),
    st.floats(0.0, 10.0),
)
def test_the_chosen_pay_and_fit(
    pairs: list[tuple[int, int]], link: float, prefill: float, budget: float
) -> None:
    model = CostModel(link, prefill)
    candidates = [Candidate(*pair) for pair in pairs]
    chosen = model.choose(candidates, budget)
    assert chosen == sorted(set(chosen))
    total = sum(candidates[i].size_bytes for i in chosen)
    assert total / link <= budget * (1 + 1e-9) + 1e-12
    for index in chosen:
        part = candidates[index]
        assert part.size_bytes / link < part.tokens * prefill


@given(st.lists(st.tuples(st.integers(-5, 10**9), st.floats(-1.0, 10.0)), max_size=50))
def test_measurements_keep_speeds_sane(samples: list[tuple[int, float]]) -> None:
    model = CostModel()
    for size, seconds in samples:
        model.transferred(size, seconds)
        model.computed(size, seconds)
    assert model.speeds.link_bytes_per_s > 0
    assert model.speeds.prefill_s_per_token > 0


@pytest.mark.parametrize(
    "arguments",
    [
        {"link_bytes_per_s": 0.0},
        {"prefill_s_per_token": -1.0},
        {"link_bytes_per_s": float("nan")},
        {"weight": 0.0},
        {"weight": 1.5},
        {"margin": 0.5},
        {"probe_s": 0.0},
    ],
)
def test_bad_numbers_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(InvalidParams):
        CostModel(**arguments)  # type: ignore[arg-type]
