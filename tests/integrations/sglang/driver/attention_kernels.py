"""Triton kernels of the attention backend against plain torch.

Run by pytest in a process of its own, with TRITON_INTERPRET=1 where there is no GPU: Triton decides
when it is imported whether it compiles or interprets.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from irminsul.attention import KeySpan, TileTable, tiles_from_pages, tiles_from_spans
from irminsul.integrations.sglang.attention import kernels, slot_kernels

WIDTH = 2100


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def slots_of(lengths: list[int], piece: int, seed: int) -> torch.Tensor:
    """Sequences that were allocated `piece` slots at a time, anywhere; what is beyond is noise."""
    generator = torch.Generator().manual_seed(seed)
    pool = 64 * 512
    slots = torch.randint(0, pool, (len(lengths) + 1, WIDTH), generator=generator).int()
    free = torch.randperm(pool // piece, generator=generator).tolist()
    for sequence, length in enumerate(lengths):
        for first in range(0, length, piece):
            end = min(first + piece, WIDTH)
            place = free.pop() * piece
            slots[sequence, first:end] = torch.arange(place, place + end - first)
    return slots


def tiles_of(table: TileTable, row: int) -> list[list[int]]:
    table = table.to("cpu")
    start, count = int(table.start[row]), int(table.count[row])
    return table.tiles[start : start + count].tolist()


LENGTHS = st.lists(st.integers(1, WIDTH), min_size=1, max_size=4)


@given(lengths=LENGTHS, seed=st.integers(0, 99))
@settings(max_examples=8, deadline=None)
def test_page_tiles_equal_those_made_of_pages(lengths, seed):
    slots = slots_of(lengths, 64, seed)
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed))
    ends = torch.tensor(lengths)[order]
    got = kernels.page_tiles(slots.to(DEVICE), order.to(DEVICE), ends.to(DEVICE))
    pages = (slots[:, ::64][order] // 64).int()
    want = tiles_from_pages(pages, ends.int())
    for row in range(len(lengths)):
        assert tiles_of(got, row) == tiles_of(want, row)


@given(
    lengths=LENGTHS,
    pieces=st.sampled_from([(1, 1), (1, 2), (1, 64), (1, 1024), (16, 16), (16, 64), (2, 1024)]),
    seed=st.integers(0, 99),
)
@settings(max_examples=14, deadline=None)
def test_slot_tiles_equal_those_made_of_spans(lengths, pieces, seed):
    page, piece = pieces  # allocated by the larger one, which the smaller one divides
    slots = slots_of(lengths, piece, seed)
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed))
    ends = torch.tensor(lengths)[order]
    got = slot_kernels.slot_tiles(slots.to(DEVICE), order.to(DEVICE), ends.to(DEVICE), page)
    own = slots[order]
    spans = [[KeySpan(row[:n], 0)] for row, n in zip(own, ends.tolist(), strict=True)]
    want = tiles_from_spans(spans)
    for row in range(len(lengths)):
        assert tiles_of(got, row) == tiles_of(want, row)


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("rows", [1, 127, 128, 200])
def test_last_tokens(rows, tokens):
    lengths = torch.randint(tokens, 9000, (rows,))
    indptr, q_pos = kernels.last_tokens(lengths.to(DEVICE), tokens)
    assert indptr.tolist() == list(range(0, (rows + 1) * tokens, tokens))
    assert q_pos.tolist() == (lengths - tokens).tolist()


@pytest.mark.parametrize("heads", [1, 3, 16])
@pytest.mark.parametrize("writes", [False, True])
def test_join_puts_parts_together_and_writes_only_the_new_rows(heads, writes):
    tokens = 5
    # As SGLang makes them: heads first, then turned round.
    latent = torch.randn(heads, tokens, 512, device=DEVICE).bfloat16().transpose(0, 1)
    rope = torch.randn(tokens, heads, 192, device=DEVICE).bfloat16()[..., 128:]
    both = torch.randn(tokens, 1, 576, device=DEVICE).bfloat16()
    rows = torch.randn(64, 1, 576, device=DEVICE).bfloat16()
    slots = torch.tensor([7, 63, 0, 12, 8], device=DEVICE)
    want_rows = rows.clone()
    write = (both[..., :512], both[..., 512:], rows, slots) if writes else None
    if writes:
        want_rows[slots] = both
    q = kernels.join(latent, rope, write)
    assert torch.equal(q, torch.cat([latent, rope], -1))
    assert torch.equal(rows, want_rows)


@pytest.mark.parametrize("halves", [False, True])
def test_join_turns_both_rotary_parts(halves):
    tokens, heads = 5, 3
    q = torch.randn(tokens, heads, 576, device=DEVICE).bfloat16()
    both = torch.randn(tokens, 1, 576, device=DEVICE).bfloat16()
    rows = torch.zeros(64, 1, 576, device=DEVICE).bfloat16()
    slots = torch.tensor([7, 63, 0, 12, 8], device=DEVICE)
    positions = torch.tensor([0, 1, 77, 4095, 300], device=DEVICE)
    angles = torch.outer(torch.arange(4096.0), 10_000.0 ** (-torch.arange(32) / 32))
    cos_sin = torch.cat([angles.cos(), angles.sin()], 1).to(DEVICE) * 1.2
    write = (both[..., :512], both[..., 512:], rows, slots)
    got = kernels.join(q[..., :512], q[..., 512:], write, (cos_sin, positions, halves))

    def turned(x):
        cos, sin = cos_sin[positions][:, None].chunk(2, -1)
        x = x.float()
        a, b = x.chunk(2, -1) if halves else (x[..., ::2], x[..., 1::2])
        parts = a * cos - b * sin, b * cos + a * sin
        return torch.cat(parts, -1) if halves else torch.stack(parts, -1).flatten(-2)

    assert torch.equal(got[..., :512], q[..., :512])
    assert torch.equal(rows[slots][..., :512], both[..., :512])
    close = {"rtol": 2**-7, "atol": 2**-10}
    torch.testing.assert_close(got[..., 512:].float(), turned(q[..., 512:]), **close)
    torch.testing.assert_close(rows[slots][..., 512:].float(), turned(both[..., 512:]), **close)


def test_nothing_to_do_is_no_launch():
    nothing = torch.empty(0, dtype=torch.int64, device=DEVICE)
    slots = torch.zeros(3, WIDTH, dtype=torch.int32, device=DEVICE)
    assert kernels.page_tiles(slots, nothing, nothing).count.numel() == 0
    assert slot_kernels.slot_tiles(slots, nothing, nothing).count.numel() == 0
    q = torch.empty(0, 4, 512, device=DEVICE)
    assert kernels.join(q, torch.empty(0, 4, 64, device=DEVICE), None).shape == (0, 4, 576)
