"""k_r turned once for many query rows: the same output as when every block turns its own."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from irminsul.attention import prepared  # noqa: E402
from mla_cases import (  # noqa: E402
    MAX_POS,
    Row,
    assert_accurate,
    assert_same_bits,
    make_batch,
    run,
    with_fp8_cache,
)

pytestmark = pytest.mark.gpu

MANY = [Row(70, 1500), Row(65, 333), Row(1, 64), Row(0, 10), Row(3, 0)]


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("deltas", [True, False])
def test_turning_once_gives_the_same_bits(monkeypatch, deltas, interleaved):
    batch = make_batch(16, MANY, cut=True, deltas=deltas, interleaved=interleaved)
    once = run(batch)
    monkeypatch.setattr(prepared, "TURNED_ROWS", 1 << 30)
    assert_same_bits(run(batch), once)


@pytest.mark.parametrize("cluster", [1, 2, 4])
def test_many_query_rows_are_accurate(cluster):
    assert_accurate(make_batch(16, MANY, cut=True, deltas=True), cluster=cluster)


@pytest.mark.parametrize("delta", [-MAX_POS, -(2**31)])
def test_a_delta_beyond_the_table_is_not_a_number(delta):
    batch = make_batch(16, [Row(64, 64)])
    batch.table.tiles[0, 2] = delta
    assert bool(torch.isnan(run(batch)[0]).all())


def test_a_table_too_large_for_slabs_is_turned_by_every_block(monkeypatch):
    batch = make_batch(16, MANY, deltas=True)
    want = run(batch)
    monkeypatch.setattr(prepared, "TURNED_BYTES", 8192)
    assert_same_bits(run(batch), want)


def test_pages_of_widened_rows_turn_too():
    assert_accurate(with_fp8_cache(make_batch(16, MANY, cut=True, deltas=True)))


@pytest.mark.parametrize("interleaved", [True, False])
def test_sanitized_kernels(monkeypatch, interleaved):
    """Small enough for compute-sanitizer, and without products of torch, which it cannot follow."""
    rows = [Row(66, 200), Row(1, 70), Row(2, 0)]
    batch = make_batch(16, rows, cut=True, deltas=True, interleaved=interleaved)
    once = run(batch)
    monkeypatch.setattr(prepared, "TURNED_ROWS", 1 << 30)
    assert_same_bits(run(batch), once)
