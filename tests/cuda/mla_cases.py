"""Random batches for the attention kernel's tests: who owns which slots, and what must not matter.

Knows tile tables and the reference; nothing of the CUDA library.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from irminsul.attention import (
    KeySpan,
    TileTable,
    build_tiles,
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
    return _call(mla_attention_fp8 if batch.is_fp8 else mla_attention, batch, options)


def _call(operator, batch: Batch, options: dict) -> tuple[Tensor, Tensor]:
    tensors = (batch.q, batch.cache, batch.table, batch.q_indptr, batch.q_pos)
    angles = {"cos_sin": batch.cos_sin, "interleaved": batch.interleaved}
    return operator(*tensors, scale=SCALE, **angles, **options)


def with_larger_scores(batch: Batch, factor: float) -> Batch:
    """Return the batch with its queries times `factor`: the maximum follows again and again."""
    return replace(batch, q=(batch.q.float() * factor).bfloat16())


def with_delta_of_each_tile(batch: Batch, seed: int = 0) -> Batch:
    """Return the batch with a delta of its own for every tile."""
    generator = torch.Generator().manual_seed(seed)
    deltas = torch.randint(1, MAX_POS, batch.table.tiles.shape[:1], generator=generator)
    return _with_deltas(batch, deltas * (1 - 2 * (torch.arange(len(deltas)) % 2)))


def with_runs(batch: Batch, longest: int = 12, seed: int = 0) -> Batch:
    """Return the batch with deltas that 1 to `longest` tiles have in turn; a third of them is 0."""
    generator = torch.Generator().manual_seed(seed)
    count = batch.table.tiles.shape[0]
    lengths = torch.randint(1, longest + 1, (count,), generator=generator)
    deltas = torch.randint(1 - MAX_POS, MAX_POS, (count,), generator=generator)
    deltas[torch.randint(0, 3, (count,), generator=generator) == 0] = 0
    return _with_deltas(batch, deltas.repeat_interleave(lengths)[:count])


def _with_deltas(batch: Batch, deltas: Tensor) -> Batch:
    tiles = batch.table.tiles.clone()
    tiles[:, 2] = deltas.int().cuda()
    return replace(batch, table=TileTable(tiles, batch.table.start, batch.table.count))


def with_pages_in_order(batch: Batch) -> Batch:
    """Return the same batch of whole pages, these one after the other in a cache of their own."""
    order = batch.table.page.long()
    table = TileTable(batch.table.tiles.clone(), batch.table.start, batch.table.count)
    table.tiles[:, 0] = torch.arange(len(order), device="cuda")
    return replace(batch, cache=batch.cache[order].contiguous(), table=table)


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
    # A number of an fp8 row is rounded to bf16 before it is multiplied, a stored bf16 one is not;
    # what that costs grows with the scores.
    size = max(1.0, float(batch.q.float().square().mean().sqrt()))
    atol = 3e-2 * size if batch.is_fp8 else 5e-3
    torch.testing.assert_close(lse[seen].double(), want_lse[seen], atol=atol, rtol=1e-3)


def assert_same_bits(got: tuple[Tensor, Tensor], want: tuple[Tensor, Tensor]) -> None:
    """Compare out and LSE of two calls, bit by bit."""
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])


def assert_poison_stays_out(batch: Batch, poison: float) -> None:
    """Fill the slots that no row of the batch owns; nothing may change."""
    rows = batch.cache.view(-1, batch.cache.shape[2])
    unowned = torch.ones(len(rows), dtype=torch.bool, device="cuda")
    unowned[batch.owned] = False
    rows[unowned] = 0
    want = run(batch)
    rows[unowned] = poison
    assert_same_bits(run(batch), want)


def assert_neighbours_stay_out(batch: Batch, cache: Tensor, poison: float) -> None:
    """Two rows share 12 pages, a part of every one each; the second row's slots are filled."""
    halves = [
        [KeySpan(torch.arange(64 * p, 64 * p + 31), 31 * p) for p in range(12)],
        [KeySpan(torch.arange(64 * p + 31, 64 * p + 64), 33 * p) for p in range(12)],
    ]
    shared = replace(batch, cache=cache, table=tiles_from_spans(halves).to("cuda"))
    first = slice(0, int(batch.q_indptr[1]))
    before, _ = run(shared)
    cache[:, 31:] = poison
    after, _ = run(shared)
    assert torch.equal(before[first], after[first])
    assert bool(torch.isfinite(after[first]).all())


def assert_graph_follows_its_inputs(heads: int, cache: Tensor) -> None:
    """Capture tiles, plan and attention over 64 pages; replay with other lengths."""
    lens = torch.tensor([700, 900, 64, 1], dtype=torch.int32, device="cuda")
    pages = torch.randperm(64, device="cuda").int().view(4, 16)
    q = torch.randn(4, heads, 576, device="cuda").bfloat16()
    indptr = torch.arange(5, dtype=torch.int32, device="cuda")
    q_pos = lens - 1
    call = mla_attention_fp8 if cache.dtype == torch.uint8 else mla_attention

    def step() -> tuple[Tensor, Tensor]:
        table = build_tiles(pages, lens, by_slot=False)
        return call(q, cache, table, indptr, q_pos, scale=SCALE, max_q_len=1)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = step()
    for lengths in ([700, 900, 64, 1], [1, 0, 10, 0], [640, 65, 0, 1]):
        lens.copy_(torch.tensor(lengths, dtype=torch.int32))
        q_pos.copy_(lens - 1)
        graph.replay()
        assert_same_bits(got, step())
        empty = torch.tensor([n == 0 for n in lengths], device="cuda")
        assert not bool(got[0][empty].any())
        assert bool((got[1][empty] == -torch.inf).all())


def exact(batch: Batch) -> tuple[Tensor, Tensor]:
    """Out and LSE in float64."""
    reference = mla_attention_fp8_reference if batch.is_fp8 else mla_attention_reference
    return _call(reference, batch, {"compute_dtype": torch.float64})


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
