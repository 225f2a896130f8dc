"""Ranks that plan the same, or not, in real processes joined by gloo."""

from __future__ import annotations

import multiprocessing
import socket
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from irminsul.integrations.sglang.agreement import NOTHING, Agreement, digest_of

SIGNED = st.integers(-(2**63), 2**63 - 1)

# (digests of the two ranks, whether they agree)
VOTES = [
    ((5, 5), True),
    ((5, 6), False),
    ((NOTHING, 5), False),
    ((5, NOTHING), False),
    ((NOTHING, NOTHING), True),
    ((2**62 - 1, 2**62 - 1), True),
    ((2**62 - 1, 2**62 - 2), False),
]


def rank(number: int, port: int, answers: Any) -> None:
    """Vote on every case; run in a process of its own."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=number, world_size=2
    )
    group = torch.distributed.new_group([0, 1])
    agreement = Agreement.of(SimpleNamespace(params=SimpleNamespace(attn_tp_cache_group=group)))
    assert agreement.ranks == 2
    agreed = [agreement.agree(votes[number]) for votes, _ in VOTES]
    ready = [agreement.all_of(flags[number]) for flags in ((True, True), (True, False))]
    least = agreement.least([[3, -4, 2**61], [2, 5, 2**61]][number])
    gathered = agreement.gathered(("rank", number))
    answers.put((number, agreed, ready, least, gathered, agreement.first))
    torch.distributed.destroy_process_group()


def test_two_ranks_give_the_same_answer_and_it_is_right() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawning = multiprocessing.get_context("spawn")
    answers = spawning.Queue()
    ranks = [spawning.Process(target=rank, args=(n, port, answers)) for n in range(2)]
    for process in ranks:
        process.start()
    received = sorted(answers.get(timeout=120) for _ in ranks)
    for process in ranks:
        process.join(60)
        assert process.exitcode == 0
    expected = [agreed for _, agreed in VOTES]
    same = (expected, [True, False], [2, -4, 2**61], [("rank", 0), ("rank", 1)])
    assert received == [(0, *same, True), (1, *same, False)]


def test_a_single_rank_agrees_without_a_group() -> None:
    alone = Agreement.alone()
    assert alone.ranks == 1
    assert alone.agree(7)
    assert alone.agree(NOTHING)
    assert alone.all_of(True)
    assert not alone.all_of(False)
    assert alone.least([3, 1]) == [3, 1]
    assert alone.gathered("all") == ["all"]
    assert alone.first


def test_an_engine_of_one_rank_has_no_group() -> None:
    context = SimpleNamespace(params=SimpleNamespace(attn_tp_cache_group=None))
    assert Agreement.of(context).ranks == 1


@given(st.lists(SIGNED, max_size=20))
def test_a_digest_is_never_the_one_of_nothing_and_fits_a_negated_int64(numbers: list[int]) -> None:
    assert NOTHING < digest_of(numbers) < 2**62
    assert digest_of(numbers) == digest_of(iter(numbers))


@given(st.lists(SIGNED, min_size=1, max_size=20), st.data())
def test_one_changed_number_changes_the_digest(numbers: list[int], data: Any) -> None:
    index = data.draw(st.integers(0, len(numbers) - 1))
    changed = [*numbers]
    changed[index] = data.draw(SIGNED.filter(lambda number: number != numbers[index]))
    assert digest_of(changed) != digest_of(numbers)


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
def test_numbers_beyond_64_bits_are_no_digest_material(number: int) -> None:
    with pytest.raises(OverflowError):
        digest_of([number])
