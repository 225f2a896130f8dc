"""Stretches of several sequences -> the index tensors of one forward pass.

Must not know modules or plans.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from irminsul.attention import PAGE_SIZE, TileTable, plan_attention, tiles_from_pages

__all__ = ["ForwardBatch", "Stretch", "chunked", "make_batch", "positions_of", "slots_of"]

Owner = TypeVar("Owner")

_MOST_STRETCHES = 512
"""Rows of one call of the attention operator."""


@dataclass(frozen=True, eq=False)
class Stretch:
    """Neighbouring positions of one sequence that one forward computes.

    Attributes
    ----------
    tokens : Tensor, int64, [n], on the CPU
    start : int
        Position of the first one.
    slots : Tensor, int64, [positions], on the CPU
        Slots of the whole sequence, whole pages in order.
    """

    tokens: Tensor
    start: int
    slots: Tensor

    @property
    def end(self) -> int:
        """Position after the last one."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, eq=False)
class ForwardBatch:
    """Stretches side by side, as one row of tokens.

    Attributes
    ----------
    tokens, positions, slots : Tensor, int64, [total]
        Ids, positions in their sequences, and where their rows go.
    bounds : list of int
        Stretch ``r`` owns tokens ``bounds[r]`` to ``bounds[r + 1]``.
    table, q_indptr, q_pos, plan
        As `irminsul.attention.mla_attention` takes them.
    """

    stretches: Sequence[Stretch]
    tokens: Tensor
    positions: Tensor
    slots: Tensor
    bounds: list[int]
    table: TileTable
    q_indptr: Tensor
    q_pos: Tensor
    max_q_len: int
    plan: Tensor | None = None


def slots_of(pages: Sequence[int]) -> Tensor:
    """Token slots of the positions that a sequence's pages hold, int64 on the CPU."""
    first = torch.tensor(pages, dtype=torch.int64) * PAGE_SIZE
    return (first[:, None] + torch.arange(PAGE_SIZE)).flatten()


def positions_of(starts: Sequence[int], lengths: Sequence[int]) -> Tensor:
    """Join ranges of `lengths` positions that begin at `starts`, int64 on the CPU."""
    length = torch.tensor(lengths, dtype=torch.int64)
    before = length.cumsum(0) - length
    shift = torch.tensor(starts, dtype=torch.int64) - before
    return torch.repeat_interleave(shift, length) + torch.arange(int(length.sum()))


def chunked(
    todo: Iterable[tuple[Owner, int, int]], size: int
) -> list[list[tuple[Owner, int, int]]]:
    """Cut ranges, each of some owner's, in order, into groups of at most `size` positions."""
    groups: list[list[tuple[Owner, int, int]]] = []
    room = 0
    for owner, start, end in todo:
        while start < end:
            if room == 0 or len(groups[-1]) == _MOST_STRETCHES:
                groups.append([])
                room = size
            stop = min(end, start + room)
            groups[-1].append((owner, start, stop))
            room -= stop - start
            start = stop
    return groups


def make_batch(
    stretches: Sequence[Stretch], device: torch.device, *, heads: int | None
) -> ForwardBatch:
    """Lay stretches side by side.

    Parameters
    ----------
    heads : int, optional
        Query heads, to divide the attention's work beforehand; None for models that do not use
        `mla_attention`.
    """
    lengths = [len(stretch.tokens) for stretch in stretches]
    starts = [stretch.start for stretch in stretches]
    bounds = [0, *itertools.accumulate(lengths)]
    key_lens = torch.tensor([stretch.end for stretch in stretches], dtype=torch.int32)
    table = tiles_from_pages(_page_table(stretches), key_lens).to(device)
    q_indptr = torch.tensor(bounds, dtype=torch.int32, device=device)
    q_pos = torch.tensor(starts, dtype=torch.int32, device=device)
    plan = None
    if heads is not None:
        plan = plan_attention(
            table, q_indptr, q_pos, total_q=bounds[-1], num_heads=heads, max_q_len=max(lengths)
        )
    return ForwardBatch(
        stretches=stretches,
        tokens=torch.cat([stretch.tokens for stretch in stretches]).to(device),
        positions=positions_of(starts, lengths).to(device),
        slots=torch.cat([s.slots[s.start : s.end] for s in stretches]).to(device),
        bounds=bounds,
        table=table,
        q_indptr=q_indptr,
        q_pos=q_pos,
        max_q_len=max(lengths),
        plan=plan,
    )


def _page_table(stretches: Sequence[Stretch]) -> Tensor:
    """Pages of each stretch that hold its keys, padded: [stretches, most pages]."""
    firsts = [stretch.slots[: stretch.end : PAGE_SIZE] for stretch in stretches]
    return pad_sequence(firsts, batch_first=True) // PAGE_SIZE
