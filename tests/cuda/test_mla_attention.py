"""The attention kernel against the float64 reference, and what must not change its output."""

from __future__ import annotations

from dataclasses import replace

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
    Row,
    assert_accurate,
    assert_graph_follows_its_inputs,
    assert_neighbours_stay_out,
    assert_poison_stays_out,
    assert_same_bits,
    make_batch,
    rope_table,
    run,
    with_larger_scores,
    with_pages_in_order,
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
    cluster=st.sampled_from([0, 1, 2, 4]),
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


@pytest.mark.parametrize("cluster", [1, 2, 4])
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
    cache = torch.randn(16, 64, 576, device="cuda").bfloat16()
    table = tiles_from_spans([spans]).to("cuda")
    assert_accurate(replace(batch, cache=cache, table=table))


@pytest.mark.parametrize("delta", [MAX_POS, -(2**31)])
def test_a_delta_beyond_the_table_is_not_a_number(delta):
    batch = make_batch(16, [Row(1, 64)])
    batch.table.tiles[0, 2] = delta
    assert bool(torch.isnan(run(batch)[0]).all())


@pytest.mark.parametrize(("heads", "q_len"), [(128, 1), (128, 2), (16, 300)])
def test_the_blocks_that_share_keys_do_not_matter(heads, q_len):
    batch = make_batch(heads, [Row(q_len, 3000), Row(q_len, 777), Row(1, 65)], cut=True)
    want = run(batch, cluster=1)
    for cluster in (2, 4):
        out, lse = run(batch, cluster=cluster)
        torch.testing.assert_close(out, want[0], atol=1e-2, rtol=1e-2)
        torch.testing.assert_close(lse, want[1], atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(("heads", "q_len"), [(16, 1), (128, 1), (16, 300)])
def test_scattered_pages_equal_contiguous_ones_bit_for_bit(heads, q_len):
    batch = make_batch(heads, [Row(q_len, 3000), Row(q_len, 777)])
    assert_same_bits(run(batch), run(with_pages_in_order(batch)))


@pytest.mark.parametrize(("heads", "q_len"), [(16, 1), (128, 1), (16, 300)])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
def test_slots_of_nobody_and_of_others_never_reach_the_output(heads, q_len, poison):
    batch = make_batch(heads, [Row(q_len, 900), Row(q_len, 500)], cut=True, deltas=True)
    assert_poison_stays_out(batch, poison)
    cache = torch.randn(12, 64, 576, device="cuda").bfloat16()
    assert_neighbours_stay_out(batch, cache, poison)


@pytest.mark.parametrize(("heads", "q_len"), [(16, 1), (128, 2), (16, 300)])
def test_the_same_call_gives_the_same_bits(heads, q_len):
    batch = make_batch(heads, [Row(q_len, 5000), Row(q_len, 1234)], cut=True, deltas=True)
    want = run(batch)
    for _ in range(50):
        assert_same_bits(run(batch), want)


@pytest.mark.parametrize("heads", [16, 128])
def test_a_captured_graph_follows_its_inputs(heads):
    assert_graph_follows_its_inputs(heads, torch.randn(64, 64, 576, device="cuda").bfloat16())


@pytest.mark.parametrize("factor", [0.01, 8, 40, 300])
@pytest.mark.parametrize(("heads", "q_len"), [(16, 1), (128, 1), (16, 100)])
def test_scores_of_any_size(heads, q_len, factor):
    batch = make_batch(heads, [Row(q_len, 1500), Row(q_len, 333)], cut=True, deltas=True)
    assert_accurate(with_larger_scores(batch, factor))


@pytest.mark.parametrize("factor", [8, 40])
@pytest.mark.parametrize(("heads", "q_len"), [(16, 1), (128, 1), (16, 100)])
def test_keys_that_fit_better_and_better(heads, q_len, factor):
    batch = with_larger_scores(make_batch(heads, [Row(q_len, 1500)]), factor)
    direction = torch.nn.functional.normalize(batch.q[0, 0].float(), dim=0)
    rising = torch.linspace(0, 8, len(batch.owned), device="cuda")[:, None] * direction
    rows = batch.cache.view(-1, 576)
    rows[batch.owned] = (rows[batch.owned] * 0.5 + rising).bfloat16()
    assert_accurate(batch)


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


@pytest.mark.parametrize("cluster", [1, 2, 4])
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
    with pytest.raises(InvalidParams, match="cluster is 3"):
        run(batch, cluster=3)
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
