"""Rows of a batch for our attention kernel, against attention over gathered keys."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from irminsul.attention import PAGE_SIZE, mla_attention
from irminsul.integrations.sglang.attention import registration
from irminsul.integrations.sglang.attention.rows import (
    Rows,
    decode_rows,
    extend_rows,
    pages_of,
    refusals,
)

SCALE = 0.04


class Engine:
    """Sequences whose rows stand anywhere in a pool, allocated by pages."""

    def __init__(self, page: int, lengths: list[int], seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.page, width, pool = page, 512, 4096
        free = torch.randperm(pool // page, generator=generator).tolist()
        self.slots = torch.zeros(len(lengths) + 1, width, dtype=torch.int32)
        for sequence, length in enumerate(lengths):
            for first in range(0, length, page):
                place = free.pop() * page
                self.slots[sequence, first : first + page] = torch.arange(place, place + page)
        self.rows = torch.randn(pool, 1, 576, generator=generator)

    def attend(self, rows: Rows, q: torch.Tensor) -> torch.Tensor:
        out, _ = mla_attention(
            q,
            pages_of(self.rows),
            rows.table,
            rows.q_indptr,
            rows.q_pos,
            scale=SCALE,
            max_q_len=rows.max_q_len,
            plan=rows.plan(q.shape[0], q.shape[1]),
        )
        return out

    def expect(self, sequence: int, position: int, q: torch.Tensor) -> torch.Tensor:
        keys = self.rows[self.slots[sequence, : position + 1].long(), 0]
        return torch.softmax(q @ keys.T * SCALE, -1) @ keys[:, :512]


PAGES = st.sampled_from([1, 16, 64])
LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=4)


@given(page=PAGES, lengths=LENGTHS, tokens=st.integers(1, 3), seed=st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_decode_attends_to_all_of_each_sequence(page, lengths, tokens, seed):
    lengths = [max(length, tokens) for length in lengths]
    engine = Engine(page, lengths, seed)
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed))
    ends = torch.tensor(lengths)[order]
    rows = decode_rows(engine.slots, order, ends, tokens, page)
    q = torch.randn(len(lengths) * tokens, 2, 576, generator=torch.Generator().manual_seed(seed))
    out = engine.attend(rows, q)
    for i, sequence in enumerate(order.tolist()):
        for t in range(tokens):
            at = i * tokens + t
            want = engine.expect(sequence, lengths[sequence] - tokens + t, q[at])
            torch.testing.assert_close(out[at], want, rtol=1e-4, atol=1e-4)


@given(page=PAGES, lengths=LENGTHS, seed=st.integers(0, 99), padding=st.integers(0, 2))
@settings(max_examples=15, deadline=None)
def test_extend_takes_holes_of_one_sequence_as_rows(page, lengths, seed, padding):
    engine = Engine(page, lengths, seed)
    holes = [
        (sequence, first, min(first + 9, length))
        for sequence, length in enumerate(lengths)
        for first in range(0, length, 40)
    ]
    sequences, starts, ends = (torch.tensor(column) for column in zip(*holes, strict=True))
    counts = ends - starts
    total = int(counts.sum())
    rows = extend_rows(
        engine.slots,
        sequences,
        starts,
        counts,
        page,
        most_tokens=int(counts.max()),
        most_keys=int(ends.max()),
    )
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(total + padding, 2, 576, generator=generator)
    out = engine.attend(rows, q)
    at = 0
    for sequence, first, end in holes:
        for position in range(first, end):
            want = engine.expect(sequence, position, q[at])
            torch.testing.assert_close(out[at], want, rtol=1e-4, atol=1e-4)
            at += 1
    assert not bool(out[total:].any())


def test_pages_of_64_are_one_tile_each_and_neighbours_are_joined():
    engine = Engine(64, [200], 0)
    ends, order = torch.tensor([200]), torch.tensor([0])
    assert int(decode_rows(engine.slots, order, ends, 1, 64).table.count) == 4
    engine.slots[0, :200] = torch.arange(70, 270)
    assert int(decode_rows(engine.slots, order, ends, 1, 1).table.count) == 4


def test_a_plan_is_made_once_for_each_shape():
    engine = Engine(64, [200], 0)
    rows = decode_rows(engine.slots, torch.tensor([0]), torch.tensor([200]), 1, 64)
    assert rows.plan(1, 16) is rows.plan(1, 16)
    assert rows.plan(2, 16) is not rows.plan(1, 16)


def runner(**changes: Any) -> Any:
    pool = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "store_dtype": torch.bfloat16}
    pool |= {"size": 4096}
    arguments: dict[str, Any] = {"speculative_algorithm": None, "speculative_eagle_topk": None}
    arguments |= {"cuda_graph_config": None}
    own: dict[str, Any] = {"use_mla_backend": True, "page_size": 64}
    for name, value in changes.items():
        next(group for group in (pool, arguments, own) if name in group)[name] = value
    return SimpleNamespace(
        token_to_kv_pool=SimpleNamespace(**pool), server_args=SimpleNamespace(**arguments), **own
    )


def refused(given: Any, **where: bool) -> list[str]:
    return refusals(given, given.server_args, **where)


FULL = SimpleNamespace(prefill=SimpleNamespace(backend="full"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cuda_graph_config": FULL}, "full prefill graphs"),
        ({"use_mla_backend": False}, "no MLA"),
        ({"kv_lora_rank": 256}, "256 \\+ 64"),
        ({"store_dtype": torch.uint8}, "--kv-cache-dtype auto"),
        ({"page_size": 128, "size": 4096 - 128}, "do not divide"),
        ({"page_size": 1}, "--max-total-tokens 4095"),
        ({"speculative_algorithm": "EAGLE", "speculative_eagle_topk": 4}, "--speculative-eagle"),
    ],
)
def test_what_the_kernel_does_not_do_is_refused_by_a_sentence(changes, says):
    (reason,) = refused(runner(**changes), on_gpu=True, has_kernel=True)
    assert re.search(says, reason)


def test_what_it_does_is_not_refused():
    assert refused(runner(), on_gpu=True, has_kernel=True) == []
    assert refused(runner(page_size=1, size=4095), on_gpu=True, has_kernel=True) == []
    chain = runner(speculative_algorithm="EAGLE", speculative_eagle_topk=1)
    assert refused(chain, on_gpu=True, has_kernel=True) == []
    assert refused(runner(store_dtype=torch.float32), on_gpu=False, has_kernel=False) == []
    (reason,) = refused(runner(), on_gpu=True, has_kernel=False)
    assert "no kernel" in reason


def test_an_engine_without_a_page_size_gets_the_kernel_s() -> None:
    """Where pages are named SGLang's plugin loader comes by, which must not wait for torch."""
    assert registration.PAGE == PAGE_SIZE
