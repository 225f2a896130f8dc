"""The relocation kernels against the torch reference (bit for bit) and float64."""

import pytest
import torch
from irminsul._rotation_reference import relocate_reference
from irminsul.rotation import RopeTable, check_relocations, relocate_rows, rotate
from relocate_cases import FORMATS, assert_same_as_reference, bits, job, pool, table
from rotary_models import (
    MODELS,
    model_cache,
    mscale,
    relative_error,
    signed_rows,
    turn,
    ulps_at_pair_norm,
)

pytestmark = pytest.mark.gpu

# --- equal to the reference ----------------------------------------------------------------------


@pytest.mark.parametrize("interleaved", [True, False], ids=["pairs", "halves"])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 31, 128, 1023, 1024, 1025, 8193])
def test_any_number_of_rows(rows: int, name: str, interleaved: bool) -> None:
    layers = pool(3, 2 * rows + 7, FORMATS[name])
    assert_same_as_reference(layers, *job(rows, 2 * rows + 7), table(interleaved=interleaved))


@pytest.mark.parametrize("layers", [1, 2, 4, 5, 27, 61, 128, 129, 300])
def test_any_number_of_layers(layers: int) -> None:
    assert_same_as_reference(pool(layers, 100), *job(40, 100), table())


def test_two_hundred_thousand_rows() -> None:
    assert_same_as_reference(pool(2, 420_000), *job(200_000, 420_000), table())


@pytest.mark.parametrize("interleaved", [True, False], ids=["pairs", "halves"])
@pytest.mark.parametrize(
    ("name", "pad", "shift"),
    [
        ("bf16", 64, 0),
        ("bf16", 8, 8),
        ("bf16", 1, 0),
        ("bf16", 0, 3),
        ("e4m3", 80, 16),
        ("e4m3", 1, 0),
        ("bytes", 0, 5),
    ],
)
def test_any_stride_and_alignment(name: str, pad: int, shift: int, interleaved: bool) -> None:
    layers = pool(5, 300, FORMATS[name], pad, shift)
    assert_same_as_reference(layers, *job(100, 300), table(interleaved=interleaved))


def test_narrow_and_strided_indices() -> None:
    source, target, delta = job(64, 300)
    assert_same_as_reference(pool(2, 300), source, target, delta.int(), table())
    wide = torch.stack([source, target, delta], dim=1)
    assert_same_as_reference(pool(2, 300), wide[:, 0], wide[:, 1], wide[:, 2], table())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_other_dtypes_take_the_reference(dtype: torch.dtype) -> None:
    layers = pool(2, 50, dtype)
    expected = [layer.clone() for layer in layers]
    arguments = job(20, 50)
    relocate_reference(expected, *arguments, table().cos_sin, True)
    relocate_rows(layers, *arguments, table())
    assert all(torch.equal(a, b) for a, b in zip(layers, expected, strict=True))


def test_same_bits_as_the_cpu() -> None:
    layers, arguments = pool(2, 200), job(90, 200)
    on_cpu = [layer.cpu() for layer in layers]
    cpu_table = RopeTable(table().cos_sin.cpu(), True)
    relocate_rows(on_cpu, *(index.cpu() for index in arguments), cpu_table)
    relocate_rows(layers, *arguments, table())
    assert all(torch.equal(a.cpu(), b) for a, b in zip(layers, on_cpu, strict=True))


# --- what other rows hold ------------------------------------------------------------------------


@pytest.mark.parametrize("interleaved", [True, False], ids=["pairs", "halves"])
def test_nan_in_rows_of_others(interleaved: bool) -> None:
    source, target, delta = job(500, 2000)
    layers = pool(4, 2000)
    owned = torch.zeros(2000, dtype=torch.bool, device="cuda")
    owned[source] = True
    for layer in layers:
        layer[~owned] = float("nan")
    relocate_rows(layers, source, target, delta, table(interleaved=interleaved))
    check_relocations()
    others = ~owned
    others[target] = False
    for layer in layers:
        assert torch.isfinite(layer[target]).all()
        assert torch.isnan(layer[others]).all()


def test_delta_zero_keeps_every_bit_of_a_row() -> None:
    layers = pool(2, 16)
    for layer in layers:  # every 16-bit pattern that fits: NaN payloads, -0.0, subnormals
        bits(layer)[:4] = torch.arange(4 * 576, device="cuda").view(4, 1, 576).short() * 28
    before = [layer[:4].clone() for layer in layers]
    source = torch.arange(4, device="cuda")
    relocate_rows(layers, source, source + 8, torch.zeros_like(source), table())
    check_relocations()
    for layer, old in zip(layers, before, strict=True):
        assert torch.equal(bits(layer)[8:12], bits(old))


# --- accuracy ------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_every_position_of_every_model(model: str) -> None:
    rotary = MODELS[model]
    rope = RopeTable.from_model_cache(model_cache(rotary).cuda(), interleaved=rotary.interleaved)
    delta = torch.arange(-rotary.positions + 1, rotary.positions, device="cuda")
    rows = delta.numel()
    layer = torch.randn(rows + 64, 1, 576, device="cuda").bfloat16()
    source = rows + torch.arange(rows, device="cuda") % 64
    stored = layer[rows:, 0, 512:].double()[source - rows]
    relocate_rows([layer], source, torch.arange(rows, device="cuda"), delta, rope)
    check_relocations()
    moved = layer[:rows, 0, 512:]
    exact = turn(stored, signed_rows(rope.cos_sin, delta), rotary.interleaved)
    assert relative_error(moved, exact) <= 1.7e-3
    assert ulps_at_pair_norm(moved, exact, rotary.interleaved) <= 0.501
    assert torch.equal(layer[:rows, :, :512], layer[source, :, :512])


@pytest.mark.parametrize("sign", [1, -1], ids=["forward", "back"])
@pytest.mark.parametrize("model", MODELS)
def test_moved_key_is_what_the_model_computes_at_the_target(model: str, sign: int) -> None:
    rotary, rows = MODELS[model], 60_000
    cache = model_cache(rotary).cuda()
    rope = RopeTable.from_model_cache(cache, mscale(rotary), interleaved=rotary.interleaved)
    reach = min(rotary.positions, 163_840)
    ends = torch.randint(0, reach, (2, rows), device="cuda").sort(dim=0).values
    source, target = (ends[0], ends[1]) if sign > 0 else (ends[1], ends[0])
    fresh = torch.randn(rows, 64, device="cuda")
    layer = torch.zeros(2 * rows, 1, 576, device="cuda", dtype=torch.bfloat16)
    layer[:rows, 0, 512:] = turn(fresh, cache[source], rotary.interleaved).bfloat16()
    slots = torch.arange(rows, device="cuda")
    relocate_rows([layer], slots, slots + rows, target - source, rope)
    check_relocations()
    wanted = turn(fresh, cache[target], rotary.interleaved)
    assert relative_error(layer[rows:, 0, 512:], wanted) <= 3.0e-3


@pytest.mark.parametrize("interleaved", [True, False], ids=["pairs", "halves"])
def test_fp8_keys_round_once(interleaved: bool) -> None:
    layer = pool(1, 4000, torch.float8_e4m3fn)[0]
    layer[0, 0, 512:] = torch.full((64,), 448.0, device="cuda").to(torch.float8_e4m3fn)
    source = torch.arange(2000, device="cuda")
    delta = source - 1000
    rope = table(interleaved=interleaved)
    stored = layer[:2000, 0, 512:].double()
    relocate_rows([layer], source, source + 2000, delta, rope, allow_fp8=True)
    check_relocations()
    exact = turn(stored, signed_rows(rope.cos_sin, delta), interleaved).clamp(-448, 448)
    assert relative_error(layer[2000:, 0, 512:], exact) <= 2.0**-4


# --- sizes ---------------------------------------------------------------------------------------


def test_slots_beyond_four_gigabytes() -> None:
    slots = 4_000_000  # 4.6 GB a layer: byte offsets beyond 2**31 and 2**32
    layers = [torch.empty(slots, 1, 576, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    low = torch.tensor([3, 1_900_000, 3_999_999], device="cuda")
    high = torch.tensor([3_999_998, 17, 1_864_136], device="cuda")  # 2**31 / 1152 = 1,864,135
    for layer in layers:
        layer[low] = torch.randn(3, 1, 576, device="cuda").bfloat16()
    before = [layer[low].clone() for layer in layers]
    delta = torch.tensor([5, -7, 0], device="cuda")
    relocate_rows(layers, low, high, delta, table())
    check_relocations()
    for layer, old in zip(layers, before, strict=True):
        assert torch.equal(layer[high, 0, :512], old[:, 0, :512])
        assert torch.equal(layer[high, 0, 512:], rotate(old[:, 0, 512:], delta, table()))
