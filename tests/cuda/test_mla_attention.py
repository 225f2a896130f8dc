"""The attention kernel against the float64 reference, and what must not change its output."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from irminsul.attention import (  # noqa: E402
    KeySpan,
    build_tiles,
    mla_attention,
    plan_attention,
    tiles_from_pages,
    tiles_from_spans,
)
from irminsul.errors import InvalidParams  # noqa: E402
from mla_cases import (  # noqa: E402
    MAX_POS,
    SCALE,
    Batch,
    Row,
    assert_accurate,
    make_batch,
    rope_table,
    run,
)

pytestmark = pytest.mark.gpu

HEADS = st.sampled_from([8, 16, 32, 64, 128])
Q_LENS = st.sampled_from([1, 2, 3, 4, 64, 513])
KEYS = st.sampled_from([1, 63, 64, 65, 128, 400, 1024, 4095])
SAMPLED = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@given(
    heads=HEADS,
    rows=st.lists(st.builds(Row, Q_LENS, KEYS), min_size=1, max_size=5),
    cut=st.booleans(),
    deltas=st.booleans(),
    interleaved=st.booleans(),
    cluster=st.sampled_from([0, 1, 2]),
    seed=st.integers(0, 1000),
)
@SAMPLED
def test_error_is_at_most_twice_that_of_plain_bf16(
    heads, rows, cut, deltas, interleaved, cluster, seed
):
    batch = make_batch(heads, rows, cut=cut, deltas=deltas, interleaved=interleaved, seed=seed)
    assert_accurate(batch, cluster=cluster)


@given(heads=HEADS, batch_size=st.integers(1, 33), keys=KEYS, seed=st.integers(0, 1000))
@SAMPLED
def test_decode_batches_of_uneven_lengths(heads, batch_size, keys, seed):
    rows = [Row(1, 1 + (keys + 97 * i) % 700) for i in range(batch_size)]
    assert_accurate(make_batch(heads, rows, seed=seed))


@pytest.mark.parametrize("heads", [16, 128])
def test_a_long_context_split_over_the_whole_gpu(heads):
    assert_accurate(make_batch(heads, [Row(1, 60_000)], cut=True, deltas=True))


def test_more_rows_than_workers():
    assert_accurate(make_batch(16, [Row(1, 1 + 37 * i % 300) for i in range(300)]))


@pytest.mark.parametrize("cluster", [1, 2])
def test_queries_that_see_few_or_no_keys(cluster):
    rows = [Row(200, 100, 0), Row(7, 500, 100), Row(1, 0, 0), Row(0, 10, 0), Row(3, 70, -2)]
    batch = make_batch(16, rows, padding_tokens=9)
    out, lse = run(batch, cluster=cluster)
    assert_accurate(batch, cluster=cluster)
    assert not bool(out[-9:].any())
    assert bool((lse[-9:] == -torch.inf).all())
    assert not bool(out[207].any())


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("delta", [1, -1, 17, -17, MAX_POS - 1, 1 - MAX_POS])
def test_each_delta_at_each_row_of_a_page(delta, interleaved):
    spans = [KeySpan(torch.arange(64 * i + i, 64 * i + i + 30), 30 * i, delta) for i in range(16)]
    batch = make_batch(16, [Row(1, 1000)], interleaved=interleaved)
    batch = Batch(
        batch.q,
        torch.randn(16, 64, 576, device="cuda").bfloat16(),
        tiles_from_spans([spans]).to("cuda"),
        batch.q_indptr,
        batch.q_pos,
        batch.owned,
        1,
        interleaved,
    )
    assert_accurate(batch)


def test_a_delta_beyond_the_table_is_not_a_number():
    batch = make_batch(16, [Row(1, 64)])
    batch.table.tiles[0, 2] = MAX_POS
    assert bool(torch.isnan(run(batch)[0]).all())


def moved_to_fresh_pages(batch: Batch) -> Batch:
    """Return the same plain paged batch with its pages in order."""
    order = batch.table.page.long()
    table = type(batch.table)(batch.table.tiles.clone(), batch.table.start, batch.table.count)
    table.tiles[:, 0] = torch.arange(len(order), device="cuda")
    return Batch(
        batch.q,
        batch.cache[order].contiguous(),
        table,
        batch.q_indptr,
        batch.q_pos,
        batch.owned,
        batch.max_q_len,
    )


@pytest.mark.parametrize(("heads", "q_len"), [(16, 1), (128, 1), (16, 300)])
def test_scattered_pages_equal_contiguous_ones_bit_for_bit(heads, q_len):
    batch = make_batch(heads, [Row(q_len, 3000), Row(q_len, 777)])
    out, lse = run(batch)
    other, other_lse = run(moved_to_fresh_pages(batch))
    assert torch.equal(out, other)
    assert torch.equal(lse, other_lse)


@pytest.mark.parametrize(("heads", "q_len"), [(16, 1), (128, 1), (16, 300)])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
def test_slots_of_nobody_and_of_others_never_reach_the_output(heads, q_len, poison):
    batch = make_batch(heads, [Row(q_len, 900), Row(q_len, 500)], cut=True, deltas=True)
    clean = batch.cache.clone()
    unowned = torch.ones(clean.shape[0] * 64, dtype=torch.bool, device="cuda")
    unowned[batch.owned] = False
    clean.view(-1, 576)[unowned] = 0
    batch.cache.copy_(clean)
    out, lse = run(batch)
    batch.cache.view(-1, 576)[unowned] = poison
    # The second row's slots are poison to the first one, which shares pages with none of them...
    first = run(batch)
    assert torch.equal(first[0], out)
    assert torch.equal(first[1], lse)
    # ... and a row that borrows the other half of the same pages must not see it either.
    halves = [
        [KeySpan(torch.arange(64 * p, 64 * p + 31), 31 * p) for p in range(12)],
        [KeySpan(torch.arange(64 * p + 31, 64 * p + 64), 33 * p) for p in range(12)],
    ]
    table = tiles_from_spans(halves).to("cuda")
    cache = torch.randn(12, 64, 576, device="cuda").bfloat16()
    shared = Batch(batch.q, cache, table, batch.q_indptr, batch.q_pos, batch.owned, q_len)
    before, _ = run(shared)
    cache[:, 31:] = poison
    after, _ = run(shared)
    assert torch.equal(before[:q_len], after[:q_len])
    assert bool(torch.isfinite(after[:q_len]).all())


@pytest.mark.parametrize(("heads", "q_len"), [(16, 1), (128, 2), (16, 300)])
def test_the_same_call_gives_the_same_bits(heads, q_len):
    batch = make_batch(heads, [Row(q_len, 5000), Row(q_len, 1234)], cut=True, deltas=True)
    out, lse = run(batch)
    for _ in range(50):
        again, again_lse = run(batch)
        assert torch.equal(out, again)
        assert torch.equal(lse, again_lse)


@pytest.mark.parametrize("heads", [16, 128])
def test_a_captured_graph_follows_its_inputs(heads):
    big = make_batch(heads, [Row(1, 700), Row(1, 900), Row(1, 64), Row(1, 1)])
    rows = 4
    pages = big.table.page.clone()
    lens = torch.tensor([700, 900, 64, 1], dtype=torch.int32, device="cuda")
    width = 16
    indices = torch.zeros(rows, width, dtype=torch.int32, device="cuda")
    for r in range(rows):
        first, count = int(big.table.start[r]), int(big.table.count[r])
        indices[r, :count] = pages[first : first + count]
    q_pos = lens - 1

    def step():
        table = build_tiles(indices, lens, by_slot=False)
        return mla_attention(big.q, big.cache, table, big.q_indptr, q_pos, scale=SCALE, max_q_len=1)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = step()
    for lengths in ([700, 900, 64, 1], [1, 0, 10, 0], [640, 65, 0, 1]):
        lens.copy_(torch.tensor(lengths, dtype=torch.int32))
        q_pos.copy_(lens - 1)
        graph.replay()
        want, want_lse = step()
        assert torch.equal(out, want)
        assert torch.equal(lse, want_lse)
        empty = torch.tensor([n == 0 for n in lengths], device="cuda")
        assert not bool(out[empty].any())
        assert bool((lse[empty] == -torch.inf).all())


@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_device_tiles_equal_the_readable_builders(data):
    rows = data.draw(st.integers(1, 6))
    lens = data.draw(st.lists(st.integers(0, 600), min_size=rows, max_size=rows))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    width = max([*lens, 1])
    spans, slots, deltas = [], torch.zeros(rows, width), torch.zeros(rows, width)
    for r, length in enumerate(lens):
        row, at = [], 0
        while at < length:
            n = min(length - at, int(torch.randint(1, 200, (1,), generator=generator)))
            first = int(torch.randint(0, 5000, (1,), generator=generator))
            delta = int(torch.randint(-9, 9, (1,), generator=generator))
            row.append(KeySpan(torch.arange(first, first + n), at, delta))
            slots[r, at : at + n] = row[-1].slots
            deltas[r, at : at + n] = delta
            at += n
        spans.append(row)
    key_lens = torch.tensor(lens, dtype=torch.int32).cuda()
    built = build_tiles(slots.int().cuda(), key_lens, by_slot=True, deltas=deltas.int().cuda())
    assert_same_rows(built.to("cpu"), tiles_from_spans(spans))
    pages = torch.randint(0, 9999, (rows, (width + 63) // 64), generator=generator).int()
    built = build_tiles(pages.cuda(), key_lens, by_slot=False)
    assert_same_rows(built.to("cpu"), tiles_from_pages(pages, key_lens.cpu()))


def assert_same_rows(got, want) -> None:
    assert torch.equal(got.count, want.count)
    for r in range(len(want.count)):
        n = int(want.count[r])
        first, other = int(got.start[r]), int(want.start[r])
        mine, theirs = got.tiles[first : first + n], want.tiles[other : other + n]
        # The host splits at a change of span, the device only where slots or deltas tell.
        assert int((got.hi - got.lo)[first : first + n].sum()) == int(
            (want.hi - want.lo)[other : other + n].sum()
        )
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("cluster", [1, 2])
def test_sanitized_kernels(cluster):
    """Small enough for compute-sanitizer: every kernel, split rows, cut and rotated tiles."""
    batch = make_batch(16, [Row(1, 300), Row(5, 70), Row(2, 0)], cut=True, deltas=True)
    assert_accurate(batch, cluster=cluster)
    lens = torch.tensor([70, 0], dtype=torch.int32, device="cuda")
    pages = torch.zeros(2, 2, dtype=torch.int32, device="cuda")
    assert build_tiles(pages, lens, by_slot=False).count.tolist() == [2, 0]
    slots = torch.arange(140, dtype=torch.int32, device="cuda").view(2, 70)
    assert build_tiles(slots, lens, by_slot=True).count.tolist() == [2, 0]


def test_bad_shapes_are_refused():
    batch = make_batch(16, [Row(1, 64)])
    with pytest.raises(InvalidParams, match="576"):
        mla_attention(
            batch.q[..., :512],
            batch.cache,
            batch.table,
            batch.q_indptr,
            batch.q_pos,
            scale=1.0,
            max_q_len=1,
        )
    with pytest.raises(InvalidParams, match="int32"):
        plan_attention(
            batch.table, batch.q_indptr.long(), batch.q_pos, total_q=1, num_heads=16, max_q_len=1
        )
    assert rope_table().shape == (MAX_POS, 64)
