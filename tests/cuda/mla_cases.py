"""Random batches for the attention kernel's tests: who owns which slots, and what must not matter.

Knows tile tables and the reference; nothing of the CUDA library.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from irminsul.attention import (
    KeySpan,
    TileTable,
    dequantize_rows,
    mla_attention,
    mla_attention_fp8,
    mla_attention_fp8_reference,
    mla_attention_reference,
    quantize_rows,
    tiles_from_spans,
)
from irminsul.attention.reference import gather_keys
from torch import Tensor

SCALE = 1.5 * 576**-0.5
MAX_POS = 4096


@dataclass(frozen=True)
class Row:
    """One virtual sequence: its query tokens, its keys, the position of its first query."""

    q_len: int
    keys: int
    first_pos: int | None = None  # None: the queries are the last tokens of the keys


@dataclass(frozen=True)
class Batch:
    """Inputs of one call on the GPU."""

    q: Tensor
    cache: Tensor
    table: TileTable
    q_indptr: Tensor
    q_pos: Tensor
    owned: Tensor  # slots that some row reads, int64
    max_q_len: int
    interleaved: bool = True
    cos_sin: Tensor = field(default_factory=lambda: rope_table())

    @property
    def is_fp8(self) -> bool:
        """Whether the cache holds 656-byte rows."""
        return self.cache.dtype == torch.uint8


def rope_table() -> Tensor:
    frequency = 10000.0 ** (-torch.arange(32, dtype=torch.float64) / 32)
    angle = torch.arange(MAX_POS, dtype=torch.float64)[:, None] * frequency
    return torch.cat([angle.cos(), angle.sin()], dim=1).float().cuda()


class _Slots:
    """Hands out pages in random order, each to one span only."""

    def __init__(self, pages: int, generator: torch.Generator) -> None:
        self.free = torch.randperm(pages, generator=generator).tolist()

    def take(self, length: int, offset: int) -> list[int]:
        slots: list[int] = []
        while len(slots) < length:
            page = self.free.pop()
            slots += range(page * 64 + offset, page * 64 + 64)
            offset = 0
        return slots[:length]


def make_batch(
    heads: int,
    rows: list[Row],
    *,
    cut: bool = False,
    deltas: bool = False,
    interleaved: bool = True,
    padding_tokens: int = 0,
    seed: int = 0,
) -> Batch:
    """Draw a batch: `cut` gives spans at random offsets in their pages, `deltas` rotates each."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.Generator("cuda").manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    pages = sum(row.keys for row in rows) // 16 + 4 * len(rows) + 8
    slots, table = _Slots(pages, generator), []
    for row in rows:
        spans: list[KeySpan] = []
        position = 0
        while position < row.keys:
            length = min(row.keys - position, draw(60, 300) if cut else row.keys)
            taken = torch.tensor(slots.take(length, draw(0, 64) if cut else 0))
            delta = draw(1 - MAX_POS, MAX_POS) if deltas else 0
            spans.append(KeySpan(taken, position, delta))
            position += length
        table.append(spans)
    owned = torch.cat([torch.zeros(0, dtype=torch.int64)] + [s.slots for r in table for s in r])
    owned = owned.cuda()
    cache = torch.full((pages, 64, 576), torch.nan, dtype=torch.bfloat16, device="cuda")
    drawn = torch.randn(len(owned), 576, generator=numbers, device="cuda")
    cache.view(-1, 576)[owned] = drawn.bfloat16()
    lengths = torch.tensor([row.q_len for row in rows])
    total = int(lengths.sum()) + padding_tokens
    first = [row.keys - row.q_len if row.first_pos is None else row.first_pos for row in rows]
    return Batch(
        q=torch.randn(total, heads, 576, generator=numbers, device="cuda").bfloat16(),
        cache=cache,
        table=tiles_from_spans(table).to("cuda"),
        q_indptr=torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).int().cuda(),
        q_pos=torch.tensor(first, dtype=torch.int32).cuda(),
        owned=owned,
        max_q_len=int(lengths.max()),
        interleaved=interleaved,
    )


def with_fp8_cache(batch: Batch) -> Batch:
    """Return the same batch with its owned rows in 656 bytes; every other byte is all ones: NaN."""
    cache = torch.full((*batch.cache.shape[:2], 656), 255, dtype=torch.uint8, device="cuda")
    cache.view(-1, 656)[batch.owned] = quantize_rows(batch.cache.view(-1, 576)[batch.owned])
    return replace(batch, cache=cache)


def picked(batch: Batch, count: int, seed: int = 0) -> tuple[Batch, Tensor]:
    """Return a batch of `count` query tokens of each row, and where they are among all tokens.

    The first and the last one of a row are always among them. Each becomes a row of its own.
    """
    generator = torch.Generator().manual_seed(seed)
    bounds = batch.q_indptr.tolist()
    tokens, rows = [], []
    for row in range(len(bounds) - 1):
        length = bounds[row + 1] - bounds[row]
        drawn = torch.randint(0, max(length, 1), (max(count - 2, 0),), generator=generator)
        chosen = sorted({0, length - 1, *drawn.tolist()} if length else ())
        tokens += [bounds[row] + i for i in chosen]
        rows += [row] * len(chosen)
    at, row = torch.tensor(tokens).cuda(), torch.tensor(rows).cuda()
    pos = batch.q_pos[row] + at - batch.q_indptr[row]
    table = TileTable(batch.table.tiles, batch.table.start[row], batch.table.count[row])
    indptr = torch.arange(len(tokens) + 1, dtype=torch.int32, device="cuda")
    few = replace(batch, q=batch.q[at], table=table, q_indptr=indptr, q_pos=pos.int(), max_q_len=1)
    return few, at


def run(batch: Batch, **options) -> tuple[Tensor, Tensor]:
    """Call the operator of the batch's cache."""
    options.setdefault("max_q_len", batch.max_q_len)
    call = mla_attention_fp8 if batch.is_fp8 else mla_attention
    return call(
        batch.q,
        batch.cache,
        batch.table,
        batch.q_indptr,
        batch.q_pos,
        scale=SCALE,
        cos_sin=batch.cos_sin,
        interleaved=batch.interleaved,
        **options,
    )


def assert_accurate(batch: Batch, picks: int | None = None, **options) -> None:
    """Compare with float64: error at most twice that of plain bf16, the same empty rows."""
    out, lse = run(batch, **options)
    assert bool(torch.isfinite(out).all())
    if picks is not None:
        batch, at = picked(batch, picks)
        out, lse = out[at], lse[at]
    want, want_lse = exact(batch)
    assert relative_error(out, want) <= 2 * relative_error(plain_bf16(batch), want) + 1e-6
    assert torch.equal(torch.isinf(lse), torch.isinf(want_lse))
    seen = torch.isfinite(want_lse)
    # A number of an fp8 row is rounded to bf16 before it is multiplied, a stored bf16 one is not.
    atol = 3e-2 if batch.is_fp8 else 5e-3
    torch.testing.assert_close(lse[seen].double(), want_lse[seen], atol=atol, rtol=1e-3)


def exact(batch: Batch) -> tuple[Tensor, Tensor]:
    """Out and LSE in float64."""
    reference = mla_attention_fp8_reference if batch.is_fp8 else mla_attention_reference
    return reference(
        batch.q,
        batch.cache,
        batch.table,
        batch.q_indptr,
        batch.q_pos,
        scale=SCALE,
        cos_sin=batch.cos_sin,
        interleaved=batch.interleaved,
        compute_dtype=torch.float64,
    )


def plain_bf16(batch: Batch) -> Tensor:
    """What torch gives in bf16 on the same inputs: the yardstick of the kernel's error."""
    read = dequantize_rows if batch.is_fp8 else Tensor.float
    out = torch.zeros(*batch.q.shape[:2], 512, dtype=torch.bfloat16, device="cuda")
    bounds = batch.q_indptr.tolist()
    for row in range(len(bounds) - 1):
        queries = slice(bounds[row], bounds[row + 1])
        if bounds[row] == bounds[row + 1]:
            continue
        keys, positions = gather_keys(
            batch.cache, batch.table, row, batch.cos_sin, batch.interleaved, read
        )
        if not len(keys):
            continue
        keys = keys.bfloat16()
        scores = (batch.q[queries] @ keys.T).float() * SCALE
        query_pos = int(batch.q_pos[row]) + torch.arange(scores.shape[0], device="cuda")
        hidden = positions[None, :] > query_pos[:, None]
        scores = scores.masked_fill(hidden[:, None, :], -torch.inf)
        weights = torch.nan_to_num(torch.softmax(scores, dim=-1), 0.0).bfloat16()
        out[queries] = weights @ keys[:, :512]
    return out


def relative_error(got: Tensor, want: Tensor) -> float:
    """L2 norm of the difference over that of `want`."""
    return float((got.double() - want).norm() / want.norm().clamp_min(1e-30))
