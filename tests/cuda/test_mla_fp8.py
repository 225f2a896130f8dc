"""The attention kernel over fp8 rows against float64, and what must not change its output."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from irminsul.attention import (  # noqa: E402
    KeySpan,
    dequantize_rows,
    quantize_rows,
    tiles_from_spans,
)
from irminsul.errors import InvalidParams  # noqa: E402
from mla_cases import (  # noqa: E402
    MAX_POS,
    Batch,
    Row,
    assert_accurate,
    assert_graph_follows_its_inputs,
    assert_neighbours_stay_out,
    assert_poison_stays_out,
    assert_same_bits,
    make_batch,
    run,
    with_fp8_cache,
    with_larger_scores,
    with_pages_in_order,
)

pytestmark = pytest.mark.gpu

HEADS = st.sampled_from([1, 8, 16, 20, 32, 64, 128])
Q_LENS = st.sampled_from([1, 2, 3, 4, 64, 300])
KEYS = st.sampled_from([1, 63, 64, 65, 128, 400, 1024, 4095])
SAMPLED = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def fp8_batch(heads: int, rows: list[Row], **options) -> Batch:
    return with_fp8_cache(make_batch(heads, rows, **options))


@given(
    heads=HEADS,
    rows=st.lists(st.builds(Row, Q_LENS, KEYS), min_size=1, max_size=5),
    cut=st.booleans(),
    deltas=st.booleans(),
    interleaved=st.booleans(),
    seed=st.integers(0, 1000),
)
@SAMPLED
def test_error_is_at_most_twice_that_of_plain_bf16(heads, rows, cut, deltas, interleaved, seed):
    options = {"cut": cut, "deltas": deltas, "interleaved": interleaved, "seed": seed}
    assert_accurate(fp8_batch(heads, rows, **options))


@given(
    heads=st.sampled_from([8, 16, 32]),
    hint=st.sampled_from([0, 1, 2]),
    seed=st.integers(0, 1000),
)
@SAMPLED
def test_rows_with_more_tokens_than_the_hint_says(heads, hint, seed):
    rows = [Row(7, 300), Row(1, 65), Row(3, 1000), Row(0, 5), Row(5, 2)]
    assert_accurate(fp8_batch(heads, rows, cut=True, deltas=True, seed=seed), max_q_len=hint)


@pytest.mark.parametrize("heads", [16, 32, 128])
def test_a_long_context_split_over_the_whole_gpu(heads):
    assert_accurate(fp8_batch(heads, [Row(1, 60_000)], cut=True, deltas=True))


def test_more_rows_than_workers():
    assert_accurate(fp8_batch(16, [Row(1, 1 + 37 * i % 300) for i in range(300)]))


@pytest.mark.parametrize("heads", [16, 32, 64])
def test_queries_that_see_few_or_no_keys(heads):
    rows = [Row(200, 100, 0), Row(7, 500, 100), Row(1, 0, 0), Row(0, 10, 0), Row(3, 70, -2)]
    batch = fp8_batch(heads, rows, padding_tokens=9)
    out, lse = run(batch)
    assert_accurate(batch)
    assert not bool(out[-9:].any())
    assert bool((lse[-9:] == -torch.inf).all())


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("delta", [1, -17, MAX_POS - 1, 1 - MAX_POS])
def test_each_delta_at_each_row_of_a_page(delta, interleaved):
    spans = [KeySpan(torch.arange(64 * i + i, 64 * i + i + 30), 30 * i, delta) for i in range(16)]
    batch = make_batch(16, [Row(1, 1000)], interleaved=interleaved)
    cache = quantize_rows(torch.randn(16, 64, 576, device="cuda"))
    assert_accurate(replace(batch, cache=cache, table=tiles_from_spans([spans]).to("cuda")))


def test_every_e4m3_code_and_factors_of_any_size():
    batch = fp8_batch(16, [Row(1, 256), Row(1, 256)])
    rows = batch.cache.view(-1, 656)[batch.owned]
    codes = torch.arange(256, device="cuda").repeat(len(rows), 2).roll(3, 1)
    codes[(codes & 127) == 127] = 0
    rows[:, :512] = codes.to(torch.uint8)
    factors = torch.logspace(-16, -5, len(rows) * 4, 2.0, device="cuda").view(-1, 4)
    rows[:, 512:528] = factors[torch.randperm(len(rows), device="cuda")].view(torch.uint8)
    batch.cache.view(-1, 656)[batch.owned] = rows
    assert_accurate(batch)
    batch.cache.view(-1, 656)[batch.owned[300], 5] = 127  # the code of NaN, in the second row
    out, _ = run(batch)
    assert bool(torch.isfinite(out[0]).all())
    assert bool(torch.isnan(out[1]).any())


def test_a_delta_beyond_the_table_is_not_a_number():
    batch = fp8_batch(16, [Row(1, 64)])
    batch.table.tiles[0, 2] = MAX_POS
    assert bool(torch.isnan(run(batch)[0]).all())


@pytest.mark.parametrize(("heads", "q_len"), [(16, 1), (32, 1), (128, 1), (16, 300)])
def test_scattered_pages_equal_contiguous_ones_bit_for_bit(heads, q_len):
    batch = fp8_batch(heads, [Row(q_len, 3000), Row(q_len, 777)])
    assert_same_bits(run(batch), run(with_pages_in_order(batch)))


@pytest.mark.parametrize(("heads", "q_len"), [(16, 1), (32, 1), (128, 1), (16, 300)])
@pytest.mark.parametrize("poison", [0xFF, 0x7F])
def test_slots_of_nobody_and_of_others_never_reach_the_output(heads, q_len, poison):
    batch = fp8_batch(heads, [Row(q_len, 900), Row(q_len, 500)], cut=True, deltas=True)
    assert_poison_stays_out(batch, poison)
    cache = quantize_rows(torch.randn(12, 64, 576, device="cuda"))
    assert_neighbours_stay_out(batch, cache, poison)


@pytest.mark.parametrize(("heads", "q_len"), [(16, 1), (32, 1), (128, 2), (16, 300)])
def test_the_same_call_gives_the_same_bits(heads, q_len):
    batch = fp8_batch(heads, [Row(q_len, 5000), Row(q_len, 1234)], cut=True, deltas=True)
    want = run(batch)
    for _ in range(50):
        assert_same_bits(run(batch), want)


@pytest.mark.parametrize("heads", [16, 128])
def test_a_captured_graph_follows_its_inputs(heads):
    cache = quantize_rows(torch.randn(64, 64, 576, device="cuda"))
    assert_graph_follows_its_inputs(heads, cache)


@pytest.mark.parametrize("factor", [0.01, 8, 40])
@pytest.mark.parametrize("heads", [16, 32, 128])
def test_scores_of_any_size(heads, factor):
    batch = fp8_batch(heads, [Row(1, 1500), Row(2, 333)], cut=True, deltas=True)
    assert_accurate(with_larger_scores(batch, factor))


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize(("heads", "q_len"), [(128, 4), (16, 300), (20, 26)])
def test_many_query_rows_attend_to_widened_keys(heads, q_len, interleaved):
    rows = [Row(q_len, 900), Row(1, 70), Row(q_len, 1), Row(0, 5)]
    batch = fp8_batch(heads, rows, cut=True, deltas=True, interleaved=interleaved)
    plain = replace(batch, cache=dequantize_rows(batch.cache, torch.bfloat16))
    assert_same_bits(run(batch), run(plain))


@pytest.mark.parametrize("heads", [16, 128])
def test_it_is_close_to_the_bf16_kernel_on_the_same_numbers(heads):
    batch = fp8_batch(heads, [Row(2, 3000), Row(2, 64)], cut=True, deltas=True)
    out, lse = run(batch)
    plain = replace(batch, cache=dequantize_rows(batch.cache, torch.bfloat16))
    want, want_lse = run(plain)
    torch.testing.assert_close(out, want, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(lse, want_lse, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("heads", [16, 32, 64])
def test_sanitized_kernels(heads):
    """Small enough for compute-sanitizer: every variant, split rows, cut and rotated tiles."""
    rows = [Row(1, 300), Row(5, 70), Row(2, 0)]
    assert_accurate(fp8_batch(heads, rows, cut=True, deltas=True), max_q_len=1)


def test_bad_strides_are_refused():
    batch = fp8_batch(16, [Row(1, 64)])
    wide = torch.zeros(batch.cache.shape[0], 64, 672, dtype=torch.uint8, device="cuda")
    with pytest.raises(InvalidParams, match="contiguous"):
        run(replace(batch, cache=wide[..., :656]))
