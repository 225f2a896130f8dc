"""The blocked CPU attention against softmax(QK^T)V written out in float64."""

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from irminsul.demo import cpu_attention  # noqa: E402
from irminsul.demo.cpu_attention import Row, attend, group_rows  # noqa: E402

WIDTH, VALUE = 24, 16


def plain(query, pool, slots, rows, scale, value_width):
    """One query at a time, float64."""
    out, token = [], 0
    for row in rows:
        for position in range(row.prefix, row.end):
            keys = pool[slots[row.sequence, : position + 1].long(), 0].double()
            scores = query[token].double() @ keys.T * scale
            out.append(torch.softmax(scores, -1) @ keys[:, :value_width])
            token += 1
    return torch.stack(out)


@st.composite
def problems(draw):
    lengths = draw(st.lists(st.integers(1, 90), min_size=1, max_size=3))
    rows = []
    for sequence, length in enumerate(lengths):
        cuts = sorted(draw(st.sets(st.integers(0, length), min_size=2, max_size=6)))
        rows += [Row(sequence, a, b - a) for a, b in zip(cuts[::2], cuts[1::2], strict=False)]
    return lengths, rows, draw(st.integers(1, 3)), draw(st.integers(0, 2**31))


def make(lengths, rows, heads, seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    tokens = sum(row.queries for row in rows)
    query = torch.randn(tokens, heads, WIDTH, generator=generator).to(dtype)
    pool = torch.randn(sum(lengths) + 1, 1, WIDTH, generator=generator).to(dtype)
    slots = torch.zeros(len(lengths), max(lengths), dtype=torch.int32)
    order = torch.randperm(sum(lengths), generator=generator).int() + 1
    for sequence, part in enumerate(order.split(lengths)):
        slots[sequence, : len(part)] = part
    return query, pool, slots


@pytest.mark.parametrize("blocks", [(128, 2048), (7, 5), (1, 1)])
@settings(max_examples=25, deadline=None)
@given(problem=problems())
def test_equals_plain_softmax(blocks, problem):
    lengths, rows, heads, seed = problem
    query, pool, slots = make(lengths, rows, heads, seed, torch.float32)
    saved = cpu_attention.QUERY_BLOCK, cpu_attention.KEY_BLOCK
    cpu_attention.QUERY_BLOCK, cpu_attention.KEY_BLOCK = blocks
    try:
        got = attend(query, pool, slots, rows, 0.3, VALUE)
    finally:
        cpu_attention.QUERY_BLOCK, cpu_attention.KEY_BLOCK = saved
    want = plain(query, pool, slots, rows, 0.3, VALUE)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_error_in_bf16_is_no_larger_than_torch_makes():
    lengths, rows = [3000], [Row(0, 40, 3), Row(0, 100, 70), Row(0, 2900, 100)]
    query, pool, slots = make(lengths, rows, 2, 7, torch.bfloat16)
    want = plain(query, pool, slots, rows, 0.2, VALUE)
    got = attend(query, pool, slots, rows, 0.2, VALUE)
    # The same arithmetic by torch's own operator, query by query, in the same dtype.
    stock, token = torch.empty_like(got), 0
    for row in rows:
        for position in range(row.prefix, row.end):
            keys = pool[slots[0, : position + 1].long(), 0].expand(2, -1, -1)
            stock[token] = torch.nn.functional.scaled_dot_product_attention(
                query[token][:, None], keys, keys[..., :VALUE], scale=0.2
            )[:, 0]
            token += 1
    error = (got.double() - want).abs().max()
    assert error <= 2 * (stock.double() - want).abs().max() + 1e-6
    assert got.dtype == torch.bfloat16


def test_rows_of_one_sequence_are_one_group():
    rows = [Row(3, 0, 2), Row(3, 9, 1), Row(1, 4, 4), Row(3, 0, 1)]
    assert [[r.sequence for r in group] for group in group_rows(rows)] == [[3, 3], [1], [3]]


def test_a_large_score_does_not_overflow():
    query = torch.full((1, 1, WIDTH), 100.0)
    pool = torch.full((3, 1, WIDTH), 50.0)
    out = attend(query, pool, torch.tensor([[1, 2]]), [Row(0, 1, 1)], 1.0, VALUE)
    torch.testing.assert_close(out, torch.full((1, 1, VALUE), 50.0))


def test_wrong_number_of_queries_is_refused():
    with pytest.raises(ValueError, match="the rows hold 2 queries, but 1 were given"):
        attend(torch.zeros(1, 1, WIDTH), torch.zeros(3, 1, WIDTH), torch.ones(1, 3), [Row(0, 0, 2)],
               1.0, VALUE)  # fmt: skip
