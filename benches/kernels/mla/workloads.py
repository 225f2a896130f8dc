"""Sizes of an attention call -> inputs of as many calls as it takes to leave the L2 behind.

Knows tile tables; nothing of timing or of other kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from irminsul.attention import KeySpan, TileTable, build_tiles, tiles_from_spans
from torch import Tensor

ROW_BYTES = 1152
ROTATE_BYTES = 400 << 20  # several times the 60 MB of L2
SCALE = 576**-0.5
MAX_POS = 163_840


@dataclass(frozen=True)
class Case:
    """One attention call: every query token is one of the last of its row's keys."""

    batch: int
    heads: int
    q_len: int
    keys: int

    @property
    def name(self) -> str:
        return f"batch {self.batch}, {self.heads} heads, {self.q_len} queries, {self.keys} keys"

    @property
    def flop(self) -> float:
        """All keys for all queries; causal work is a little less."""
        return 2.0 * self.batch * self.heads * self.q_len * self.keys * (576 + 512)

    @property
    def bytes(self) -> float:
        """Keys once, queries and output once."""
        rows = self.batch * self.q_len * self.heads
        return self.batch * self.keys * ROW_BYTES + rows * (576 + 512) * 2

    @property
    def calls(self) -> int:
        """Calls with different keys in one graph.

        At least four, as an engine replays all layers: starting a graph is no part of a call. One
        where it takes milliseconds, so that the ways take turns faster than the clock moves.
        """
        key_bytes = self.batch * self.keys * ROW_BYTES
        return 1 if self.flop > 4e12 else max(4, min(12, int(ROTATE_BYTES // key_bytes) + 1))


TABLE = [
    Case(128, 16, 1, 8192),
    Case(64, 16, 1, 32_768),
    Case(8, 16, 1, 131_072),
    Case(1, 16, 1, 32_768),
    Case(1, 16, 1, 131_072),
    Case(2, 16, 1, 131_072),
    Case(4, 16, 1, 65_536),
    Case(128, 128, 1, 4096),
    Case(128, 128, 1, 8192),
    Case(64, 128, 2, 8192),
    Case(1, 128, 64, 32_768),
    Case(1, 16, 512, 32_768),
    Case(4, 16, 2048, 16_384),
]


def rope_table() -> Tensor:
    """cos and sin of a plain rotary embedding, [MAX_POS, 64] fp32."""
    frequency = 10_000.0 ** (-torch.arange(32, dtype=torch.float64) / 32)
    angle = torch.arange(MAX_POS, dtype=torch.float64)[:, None] * frequency
    return torch.cat([angle.cos(), angle.sin()], dim=1).float().cuda()


class Pool:
    """A latent cache of random numbers and page tables that walk through it."""

    def __init__(self, tokens: int = 64 * 32_768 * 2) -> None:
        self.cache = torch.empty(tokens // 64, 64, 576, dtype=torch.bfloat16, device="cuda")
        for part in self.cache.split(4096):
            part.normal_()
        self.order = torch.randperm(tokens // 64)
        self.at = 0

    def pages(self, batch: int, count: int) -> Tensor:
        """[batch, count] int32 pages, no page twice before the pool has been used up."""
        if self.at + batch * count > len(self.order):
            self.at = 0
        taken = self.order[self.at : self.at + batch * count]
        self.at += batch * count
        return taken.view(batch, count).int().cuda()


def whole_pages(pages: Tensor, keys: int, *, rotated: bool, run: int = 1) -> TileTable:
    """Tiles of plain paged rows; `rotated` gives every `run` of them a delta, as spans have."""
    lens = torch.full((len(pages),), keys, dtype=torch.int32, device="cuda")
    table = build_tiles(pages, lens, by_slot=False)
    if rotated:
        runs = (table.tiles.shape[0] // run,)
        deltas = torch.randint(-100_000, 100_000, runs, dtype=torch.int32)
        table.tiles[:, 2] = deltas.repeat_interleave(run).cuda()
    return table


def cut_spans(pages: Tensor, keys: int) -> tuple[TileTable, float]:
    """Keys in spans of 128 tokens at random in-page offsets; also pages touched over needed.

    A span takes three pages of its own, of which the first and the last are cut.
    """
    generator = torch.Generator().manual_seed(0)
    rows, touched = [], 0
    for row in pages.cpu().tolist():
        spans = []
        for i in range(keys // 128):
            own = row[3 * i : 3 * i + 3]
            offset = int(torch.randint(0, 64, (1,), generator=generator))
            slots = torch.cat([torch.arange(64 * p, 64 * p + 64) for p in own])
            spans.append(KeySpan(slots[offset : offset + 128], 128 * i))
            touched += 2 if offset == 0 else 3
        rows.append(spans)
    return tiles_from_spans(rows).to("cuda"), touched * 64 / (len(rows) * keys)
