"""The 656-byte fp8 row and the reference attention over it, against arithmetic written out."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from irminsul.attention import (  # noqa: E402
    FP8_ROW_BYTES,
    KeySpan,
    dequantize_rows,
    mla_attention_fp8,
    mla_attention_fp8_reference,
    mla_attention_reference,
    quantize_rows,
    tiles_from_spans,
)
from irminsul.errors import InvalidParams  # noqa: E402


def e4m3(byte: int) -> float:
    """The value of an e4m3 code by its definition."""
    sign = -1.0 if byte & 0x80 else 1.0
    exponent, mantissa = byte >> 3 & 15, byte & 7
    if exponent == 15 and mantissa == 7:
        return float("nan")
    if exponent == 0:
        return sign * mantissa / 8 * 2.0**-6
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def test_a_row_s_bytes_are_numbers_then_factors_then_rope():
    row = bytearray(FP8_ROW_BYTES)
    codes = [(7 * i + 3) % 256 for i in range(512)]
    row[:512] = bytes(codes)
    factors = [0.5, 1.25, 3.0, 1e-3]
    row[512:528] = struct.pack("<4f", *factors)
    rope = [i / 8 - 4 for i in range(64)]
    row[528:] = b"".join(struct.pack("<f", x)[2:] for x in rope)
    got = dequantize_rows(torch.frombuffer(row, dtype=torch.uint8), torch.float64)
    exact = [struct.unpack("<f", struct.pack("<f", f))[0] for f in factors]
    want = [e4m3(code) * exact[i // 128] for i, code in enumerate(codes)] + rope
    torch.testing.assert_close(
        got, torch.tensor(want, dtype=torch.float64), rtol=0, atol=0, equal_nan=True
    )


@given(seed=st.integers(0, 2**31), spread=st.floats(1e-3, 1e3))
@settings(max_examples=30, deadline=None)
def test_quantising_is_off_by_at_most_half_a_step(seed, spread):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(5, 3, 576, generator=generator) * spread
    back = dequantize_rows(quantize_rows(rows))
    groups = rows[..., :512].unflatten(-1, (4, 128))
    largest = groups.abs().amax(-1, keepdim=True)
    # Half a unit in the last of three mantissa places, or of the smallest step below 2^-6.
    bound = torch.maximum(groups.abs() * 2**-4, largest / 448 * 2**-10) * 1.0001
    off = (back[..., :512].unflatten(-1, (4, 128)) - groups).abs()
    assert bool((off <= bound).all())
    assert torch.equal(back[..., 512:], rows[..., 512:].bfloat16().float())


def test_zeros_stay_zeros_and_what_is_not_a_number_stays_so():
    rows = torch.zeros(2, 576)
    rows[1, 130] = torch.nan
    back = dequantize_rows(quantize_rows(rows))
    assert not bool(back[0].any())
    assert bool(torch.isnan(back[1, 130]))
    assert bool(torch.isfinite(back[1, :128]).all())


def case(seed: int, dtype: torch.dtype):
    generator = torch.Generator().manual_seed(seed)
    rows = quantize_rows(torch.randn(6, 64, 576, generator=generator))
    spans = [KeySpan(torch.arange(70, 190), 0, 5), KeySpan(torch.arange(3, 60), 120, -9)]
    table = tiles_from_spans([spans, [KeySpan(torch.arange(200, 300), 0)]])
    q = torch.randn(5, 2, 576, generator=generator).to(dtype)
    angle = torch.outer(torch.arange(16.0), 10000.0 ** (-torch.arange(32) / 32))
    cos_sin = torch.cat([angle.cos(), angle.sin()], 1)
    indptr, q_pos = torch.tensor([0, 3, 5]).int(), torch.tensor([140, 98]).int()
    return rows, q, table, indptr, q_pos, cos_sin


@given(seed=st.integers(0, 2**31))
@settings(max_examples=5, deadline=None)
def test_attention_is_that_over_the_dequantised_rows(seed):
    rows, q, table, indptr, q_pos, cos_sin = case(seed, torch.float64)
    options = {"scale": 0.04, "cos_sin": cos_sin, "compute_dtype": torch.float64}
    out, lse = mla_attention_fp8_reference(q, rows, table, indptr, q_pos, **options)
    plain = dequantize_rows(rows, torch.float64)
    want, want_lse = mla_attention_reference(q, plain, table, indptr, q_pos, **options)
    assert torch.equal(out, want)
    assert torch.equal(lse, want_lse)


def test_the_operator_runs_the_reference_here_and_knows_its_shapes():
    rows, q, table, indptr, q_pos, cos_sin = case(0, torch.bfloat16)
    options = {"scale": 0.04, "cos_sin": cos_sin}
    out, lse = mla_attention_fp8(q, rows, table, indptr, q_pos, max_q_len=3, **options)
    want, want_lse = mla_attention_fp8_reference(q, rows, table, indptr, q_pos, **options)
    assert torch.equal(out, want.bfloat16())
    assert torch.equal(lse, want_lse)
    inputs = (q, rows, table.tiles, table.start, table.count, indptr, q_pos, cos_sin)
    plan = torch.empty(0, dtype=torch.uint8)
    torch.library.opcheck(
        torch.ops.irminsul.mla_attention_fp8.default,
        (*inputs, plan, 0.04, True, 3),
        test_utils=("test_schema", "test_faketensor"),
    )


def test_bad_shapes_are_refused():
    rows, q, table, indptr, q_pos, _ = case(0, torch.bfloat16)
    with pytest.raises(InvalidParams, match="656"):
        mla_attention_fp8(q, rows[..., :640], table, indptr, q_pos, scale=1.0, max_q_len=3)
    with pytest.raises(InvalidParams, match="uint8"):
        mla_attention_fp8(q, rows.float(), table, indptr, q_pos, scale=1.0, max_q_len=3)
    with pytest.raises(InvalidParams, match="heads"):
        mla_attention_fp8(
            q.new_zeros(5, 129, 576), rows, table, indptr, q_pos, scale=1.0, max_q_len=3
        )
    with pytest.raises(InvalidParams, match="576"):
        quantize_rows(torch.zeros(3, 512))
    with pytest.raises(InvalidParams, match="656"):
        dequantize_rows(torch.zeros(3, 512, dtype=torch.uint8))
