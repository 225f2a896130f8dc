"""The reference attention and tile builders against naive full attention over gathered rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from irminsul.attention import (  # noqa: E402
    KeySpan,
    TileTable,
    mla_attention,
    mla_attention_reference,
    spans_from_plan,
    tiles_from_pages,
    tiles_from_spans,
)
from irminsul.attention.reference import rotate_keys  # noqa: E402
from irminsul.errors import InvalidParams  # noqa: E402

MAX_POS = 512


def rope_table() -> torch.Tensor:
    frequency = 10000.0 ** (-torch.arange(32, dtype=torch.float64) / 32)
    angle = torch.arange(MAX_POS, dtype=torch.float64)[:, None] * frequency
    return torch.cat([angle.cos(), angle.sin()], dim=1)


def naive(q, keys, key_pos, query_pos, scale):
    """Full attention of one head of one token at a time, written without any batching."""
    out = torch.zeros(q.shape[0], q.shape[1], 512, dtype=torch.float64)
    lse = torch.full(q.shape[:2], -torch.inf, dtype=torch.float64)
    for t in range(q.shape[0]):
        seen = keys[key_pos <= query_pos[t]]
        if not len(seen):
            continue
        for h in range(q.shape[1]):
            scores = seen @ q[t, h] * scale
            out[t, h] = torch.softmax(scores, 0) @ seen[:, :512]
            lse[t, h] = torch.log(torch.exp(scores).sum())
    return out, lse


@given(
    seed=st.integers(0, 2**31),
    heads=st.sampled_from([1, 8]),
    q_len=st.integers(1, 5),
    key_lens=st.lists(st.integers(0, 200), min_size=1, max_size=3),
    first_pos=st.integers(0, 210),
)
@settings(max_examples=8, deadline=None)
def test_paged_rows_equal_naive_attention(seed, heads, q_len, key_lens, first_pos):
    generator = torch.Generator().manual_seed(seed)
    pages = torch.randperm(16, generator=generator)[: 4 * len(key_lens)].reshape(len(key_lens), 4)
    cache = torch.randn(16, 64, 576, generator=generator, dtype=torch.float64)
    q = torch.randn(len(key_lens) * q_len, heads, 576, generator=generator, dtype=torch.float64)
    indptr = torch.arange(len(key_lens) + 1) * q_len
    q_pos = torch.full((len(key_lens),), first_pos)
    table = tiles_from_pages(pages, torch.tensor(key_lens))
    out, lse = mla_attention_reference(
        q, cache, table, indptr, q_pos, scale=0.05, compute_dtype=torch.float64
    )
    for row, length in enumerate(key_lens):
        rows = slice(row * q_len, (row + 1) * q_len)
        keys = cache[pages[row]].flatten(0, 1)[:length]
        query_pos = first_pos + torch.arange(q_len)
        want, want_lse = naive(q[rows], keys, torch.arange(length), query_pos, 0.05)
        torch.testing.assert_close(out[rows], want)
        torch.testing.assert_close(lse[rows], want_lse)


@dataclass(frozen=True)
class Borrowed:
    """A row made of borrowed spans: where they stand and where they are wanted."""

    slots: list[list[int]]
    positions: list[int]
    deltas: list[int]


@st.composite
def borrowed_rows(draw) -> Borrowed:
    slots, positions, deltas, end = [], [], [], 0
    for _ in range(draw(st.integers(1, 4))):
        length = draw(st.integers(1, 90))
        first = draw(st.integers(0, 16 * 64 - length))
        position = end + draw(st.integers(0, 9))
        slots.append(list(range(first, first + length)))
        positions.append(position)
        deltas.append(draw(st.integers(-MAX_POS + 1, MAX_POS - 1)))
        end = position + length
    return Borrowed(slots, positions, deltas)


@pytest.mark.parametrize("interleaved", [True, False])
@given(row=borrowed_rows(), seed=st.integers(0, 2**31))
@settings(max_examples=8, deadline=None)
def test_borrowed_spans_equal_relocated_rows(interleaved, row, seed):
    generator = torch.Generator().manual_seed(seed)
    cache = torch.randn(16, 64, 576, generator=generator, dtype=torch.float64)
    q = torch.randn(3, 2, 576, generator=generator, dtype=torch.float64)
    cos_sin = rope_table()
    spans = [
        KeySpan(torch.tensor(s), p, d)
        for s, p, d in zip(row.slots, row.positions, row.deltas, strict=True)
    ]
    table = tiles_from_spans([spans])
    moved, positions = [], []
    for span in spans:
        rows = cache.flatten(0, 1)[span.slots].clone()
        delta = torch.full((len(rows),), span.delta)
        rows[:, 512:] = rotate_keys(rows[:, 512:], delta, cos_sin, interleaved)
        moved.append(rows)
        positions.append(span.position + torch.arange(len(rows)))
    first = row.positions[-1]
    out, lse = mla_attention_reference(
        q,
        cache,
        table,
        torch.tensor([0, 3]),
        torch.tensor([first]),
        scale=0.05,
        cos_sin=cos_sin,
        interleaved=interleaved,
        compute_dtype=torch.float64,
    )
    query_pos = first + torch.arange(3)
    want, want_lse = naive(q, torch.cat(moved), torch.cat(positions), query_pos, 0.05)
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(lse, want_lse)


@pytest.mark.parametrize("interleaved", [True, False])
@given(a=st.integers(-200, 200), b=st.integers(-200, 200), seed=st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_rotations_add_and_keep_norms(interleaved, a, b, seed):
    keys = torch.randn(4, 64, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    def turn(rows, delta):
        return rotate_keys(rows, torch.full((4,), delta), rope_table(), interleaved)

    torch.testing.assert_close(turn(turn(keys, a), b), turn(keys, a + b))
    torch.testing.assert_close(turn(keys, a).norm(dim=1), keys.norm(dim=1))
    assert torch.equal(turn(keys, 0), keys)


def test_rotation_pairs_follow_the_layout():
    key = torch.zeros(1, 64, dtype=torch.float64)
    key[0, 2] = 1.0
    angle = torch.tensor(3.0) * 10000.0 ** torch.tensor(-1 / 32)
    turned = rotate_keys(key, torch.tensor([3]), rope_table(), interleaved=True)[0]
    assert turned[2].item() == pytest.approx(angle.cos().item(), abs=1e-6)
    assert turned[3].item() == pytest.approx(angle.sin().item(), abs=1e-6)
    angle = torch.tensor(3.0) * 10000.0 ** torch.tensor(-2 / 32)
    turned = rotate_keys(key, torch.tensor([3]), rope_table(), interleaved=False)[0]
    assert turned[2].item() == pytest.approx(angle.cos().item(), abs=1e-6)
    assert turned[34].item() == pytest.approx(angle.sin().item(), abs=1e-6)


@given(row=borrowed_rows())
def test_tiles_cover_each_slot_once_inside_one_page(row):
    spans = [
        KeySpan(torch.tensor(s), p, d)
        for s, p, d in zip(row.slots, row.positions, row.deltas, strict=True)
    ]
    table = tiles_from_spans([spans])
    covered = [
        (page * 64 + slot, pos0 + slot - lo, delta)
        for page, lo, hi, delta, pos0 in zip(
            *(c.tolist() for c in (table.page, table.lo, table.hi, table.delta, table.pos0)),
            strict=True,
        )
        for slot in range(lo, hi)
    ]
    want = [
        (slot, position + i, delta)
        for slots, position, delta in zip(row.slots, row.positions, row.deltas, strict=True)
        for i, slot in enumerate(slots)
    ]
    assert covered == want
    assert bool((table.lo < table.hi).all())
    assert bool((table.hi <= 64).all())


def test_rows_without_keys_give_zeros_and_minus_infinity():
    table = tiles_from_pages(torch.zeros(2, 1, dtype=torch.int32), torch.tensor([0, 10]))
    q = torch.randn(3, 2, 576)
    out, lse = mla_attention_reference(
        q, torch.randn(1, 64, 576), table, torch.tensor([0, 1, 3]), torch.tensor([0, 8]), scale=0.1
    )
    assert torch.equal(out[0], torch.zeros(2, 512))
    assert bool((lse[0] == -torch.inf).all())
    assert bool(torch.isfinite(out[1:]).all())


def test_unowned_rows_never_reach_the_output():
    cache = torch.full((2, 64, 576), torch.nan)
    cache[1, 5:20] = torch.randn(15, 576)
    table = tiles_from_spans([[KeySpan(torch.arange(69, 84), 0)]])
    q = torch.randn(1, 8, 576)
    out, lse = mla_attention_reference(
        q, cache, table, torch.tensor([0, 1]), torch.tensor([99]), scale=0.1
    )
    assert bool(torch.isfinite(out).all())
    assert bool(torch.isfinite(lse).all())


def test_table_packs_the_layout_of_the_c_struct():
    columns = [torch.tensor([v]) for v in (7, 3, 64, -5, 1000)]
    table = TileTable.from_columns(*columns, torch.tensor([1]))
    assert table.tiles.dtype == torch.int32
    assert table.tiles.tolist() == [[7, 3 | 64 << 16, -5, 1000]]
    fields = (table.page, table.lo, table.hi, table.delta, table.pos0)
    assert [int(f) for f in fields] == [7, 3, 64, -5, 1000]


def test_a_missing_rope_table_and_bad_tables_are_refused():
    table = tiles_from_spans([[KeySpan(torch.arange(4), 0, delta=1)]])
    with pytest.raises(InvalidParams, match="cos_sin"):
        mla_attention_reference(
            torch.randn(1, 1, 576),
            torch.randn(1, 64, 576),
            table,
            torch.tensor([0, 1]),
            torch.tensor([3]),
            scale=1.0,
        )
    with pytest.raises(InvalidParams, match="starts before 4"):
        tiles_from_spans([[KeySpan(torch.arange(4), 0), KeySpan(torch.arange(4), 3)]])
    with pytest.raises(InvalidParams, match="65 keys"):
        tiles_from_pages(torch.zeros(1, 1, dtype=torch.int32), torch.tensor([65]))


def test_a_plan_becomes_prefix_borrowed_and_own_spans():
    import irminsul

    text = list(range(1000, 2000))
    registry = irminsul.Registry(100_000)
    namespace = irminsul.Namespace(model="m")
    registry.record(text, 3, namespace=namespace, base_position=40)
    prompt = list(range(50)) + text + [7, 8, 9]
    plan = registry.lookup(prompt, namespace=namespace, prefix_len=10)
    own = torch.arange(5000, 5000 + plan.computed_tokens)
    spans = spans_from_plan(
        plan, torch.arange(10), own, lambda piece: torch.arange(piece.length) + piece.offset + 128
    )
    assert plan.reused_tokens > 0
    position = 0
    for span in spans:
        assert span.position == position
        position += len(span.slots)
    assert position == len(prompt)
    borrowed = [s for s in spans if s.delta]
    assert sum(len(s.slots) for s in borrowed) == plan.reused_tokens


def table_of(**change: torch.Tensor) -> TileTable:
    return replace(plain_call()["table"], **change)


def plain_call(q_len: int = 2) -> dict[str, object]:
    table = tiles_from_pages(torch.tensor([[1, 0]]), torch.tensor([100]))
    return {
        "q": torch.randn(q_len, 4, 576),
        "cache": torch.randn(2, 64, 576),
        "table": table,
        "q_indptr": torch.tensor([0, q_len], dtype=torch.int32),
        "q_pos": torch.tensor([98], dtype=torch.int32),
    }


def test_the_operator_runs_the_reference_on_the_cpu():
    call = plain_call()
    out, lse = mla_attention(**call, scale=0.05, max_q_len=2)
    want, want_lse = mla_attention_reference(**call, scale=0.05)
    assert torch.equal(out, want)
    assert torch.equal(lse, want_lse)


def test_the_operator_traces_without_data():
    from torch._subclasses.fake_tensor import FakeTensorMode

    call = plain_call()
    with FakeTensorMode() as mode:
        fake = {
            name: mode.from_tensor(value) if isinstance(value, torch.Tensor) else value
            for name, value in call.items()
        }
        table = call["table"]
        fake["table"] = TileTable(
            *(mode.from_tensor(t) for t in (table.tiles, table.start, table.count))
        )
        out, lse = mla_attention(**fake, scale=0.05, max_q_len=2)
    assert out.shape == (2, 4, 512)
    assert lse.shape == (2, 4)
    assert lse.dtype == torch.float32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.randn(2, 4, 512)}, "576"),
        ({"q": torch.randn(2, 129, 576)}, "129 heads"),
        ({"cache": torch.randn(2, 32, 576)}, "64, 576"),
        ({"cache": torch.randn(2, 64, 576, dtype=torch.float64)}, "float64"),
        ({"cos_sin": torch.randn(8, 32)}, "8, 32"),
        ({"cos_sin": torch.randn(8, 64, dtype=torch.float64)}, "cos_sin must be .*float64"),
        ({"cos_sin": torch.randn(64, 8).T}, "contiguous"),
        ({"cos_sin": torch.randn(8, 64, device="meta")}, "cos_sin is on meta"),
        ({"cache": torch.randn(2, 64, 576, device="meta")}, "cache is on meta"),
        ({"scale": float("nan")}, "scale is nan"),
        ({"q_indptr": torch.tensor([0, 2])}, "q_indptr must be .*int64"),
        ({"q_indptr": torch.tensor([0], dtype=torch.int32)}, r"q_indptr .* \[1\].* \[2\]"),
        ({"q_pos": torch.zeros(2, dtype=torch.int32)}, r"q_pos .* 1 rows"),
        ({"q_pos": torch.zeros(1, dtype=torch.int32, device="meta")}, "q_pos is on meta"),
        ({"table": table_of(tiles=torch.zeros(2, 4, dtype=torch.int64))}, "table.tiles .*int64"),
        ({"table": table_of(count=torch.zeros(3, dtype=torch.int32))}, "table.count"),
    ],
)
def test_bad_inputs_are_refused_by_name(change, message):
    with pytest.raises(InvalidParams, match=message):
        mla_attention(**{**plain_call(), "scale": 0.05, "max_q_len": 2, **change})
