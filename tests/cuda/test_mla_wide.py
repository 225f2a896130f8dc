"""Both attention kernels at sizes that engines reach: long keys, long queries, large batches.

The float64 reference runs on a few query tokens of each row, every other output must be finite.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from mla_cases import Row, assert_accurate, make_batch, with_fp8_cache  # noqa: E402

pytestmark = pytest.mark.gpu

HEADS = st.sampled_from([8, 16, 32, 64, 128])
SAMPLED = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
LONG_KEYS = [1, 63, 64, 65, 127, 128, 4096, 8191, 32_768, 33_793, 65_536, 131_071, 131_072]


@pytest.fixture(params=["bf16", "fp8"])
def cached(request):
    """How the batch's keys are stored: as they are, or in fp8 rows."""
    return with_fp8_cache if request.param == "fp8" else lambda batch: batch


@given(
    heads=HEADS,
    keys=st.lists(st.sampled_from(LONG_KEYS), min_size=1, max_size=3),
    q_len=st.sampled_from([1, 2, 3, 4]),
    cut=st.booleans(),
    deltas=st.booleans(),
    seed=st.integers(0, 1000),
)
@SAMPLED
def test_decode_over_up_to_131072_keys(cached, heads, keys, q_len, cut, deltas, seed):
    rows = [Row(q_len, length) for length in keys]
    assert_accurate(cached(make_batch(heads, rows, cut=cut, deltas=deltas, seed=seed)), picks=2)


@given(
    heads=HEADS,
    q_len=st.sampled_from([64, 513, 1024, 2048]),
    before=st.sampled_from([0, 1, 64, 1000, 8192]),
    cut=st.booleans(),
    interleaved=st.booleans(),
    seed=st.integers(0, 1000),
)
@SAMPLED
def test_prefill_of_up_to_2048_tokens(cached, heads, q_len, before, cut, interleaved, seed):
    rows = [Row(q_len, before + q_len), Row(q_len // 3, q_len)]
    batch = make_batch(heads, rows, cut=cut, deltas=cut, interleaved=interleaved, seed=seed)
    assert_accurate(cached(batch), picks=5)


@given(
    heads=HEADS,
    size=st.one_of(st.integers(1, 33), st.just(128)),
    longest=st.sampled_from([1, 65, 700, 2049]),
    q_len=st.sampled_from([1, 2, 4]),
    padding=st.sampled_from([0, 7]),
    seed=st.integers(0, 1000),
)
@SAMPLED
def test_batches_of_uneven_rows(cached, heads, size, longest, q_len, padding, seed):
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randint(0, longest + 1, (size,), generator=generator).tolist()
    rows = [Row(q_len, length) for length in keys]
    batch = make_batch(heads, rows, padding_tokens=padding, seed=seed)
    assert_accurate(cached(batch), picks=4)
