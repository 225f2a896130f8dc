"""Who turns: k_r once for many query rows, every block its own, or its queries for a run."""

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
    with_delta_of_each_tile,
    with_fp8_cache,
    with_runs,
)

pytestmark = pytest.mark.gpu

MANY = [Row(70, 1500), Row(65, 333), Row(1, 64), Row(0, 10), Row(3, 0)]


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("deltas", [True, False])
def test_turning_once_gives_the_same_bits(monkeypatch, deltas, interleaved):
    batch = make_batch(16, MANY, cut=True, interleaved=interleaved)
    if deltas:
        batch = with_delta_of_each_tile(batch)
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
    batch = with_delta_of_each_tile(make_batch(16, MANY))
    want = run(batch)
    monkeypatch.setattr(prepared, "TURNED_BYTES", 8192)
    assert_same_bits(run(batch), want)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("cluster", [2, 4])
@pytest.mark.parametrize("cut", [True, False])
def test_queries_turned_for_runs_of_tiles_are_accurate(cluster, cut, interleaved):
    rows = [Row(1, 4000), Row(2, 1500), Row(1, 70), Row(0, 10), Row(2, 3000), Row(1, 0)]
    for seed, longest in enumerate([4, 12, 40]):
        batch = make_batch(128, rows, cut=cut, interleaved=interleaved, seed=seed)
        assert_accurate(with_runs(batch, longest, seed), cluster=cluster)


def test_runs_across_units_and_workers_are_accurate():
    """Every worker has several units, whose last and first tiles may have one delta."""
    batch = make_batch(128, [Row(1, 64 * (1 + i % 9)) for i in range(200)])
    assert_accurate(with_runs(batch, 20))


def test_runs_give_the_same_bits_again():
    batch = with_runs(make_batch(128, [Row(2, 6000)] * 3, cut=True))
    want = run(batch)
    for _ in range(50):
        assert_same_bits(run(batch), want)


def test_a_run_beyond_the_table_is_not_a_number():
    batch = make_batch(128, [Row(1, 640)])
    batch.table.tiles[:, 2] = MAX_POS
    assert bool(torch.isnan(run(batch)[0]).all())


def test_pages_of_widened_rows_turn_too():
    assert_accurate(with_fp8_cache(make_batch(16, MANY, cut=True, deltas=True)))


@pytest.mark.parametrize("interleaved", [True, False])
def test_sanitized_kernels(monkeypatch, interleaved):
    """Small enough for compute-sanitizer, and without products of torch, which it cannot follow."""
    rows = [Row(66, 200), Row(1, 70), Row(2, 0)]
    batch = with_delta_of_each_tile(make_batch(16, rows, cut=True, interleaved=interleaved))
    once = run(batch)
    monkeypatch.setattr(prepared, "TURNED_ROWS", 1 << 30)
    assert_same_bits(run(batch), once)
    runs = with_runs(make_batch(128, [Row(1, 900), Row(2, 1300)], interleaved=interleaved))
    assert_same_bits(run(runs), run(runs))
