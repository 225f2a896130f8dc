"""Rotation of keys and relocation of rows: the torch reference against independent formulas."""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from irminsul.errors import (
    DeltaOutOfRange,
    InvalidParams,
    InvalidSlots,
    InvalidTensor,
    OverlappingSlots,
    Unsupported,
)
from irminsul.rotation import RopeTable, relocate_rows, rotate
from rotary_models import (
    MODELS,
    PAIRS,
    Rotary,
    exact_cache,
    model_cache,
    mscale,
    relative_error,
    signed_rows,
    turn,
    ulps_at_pair_norm,
)

LONGEST_DELTA = 163_840
"""The accuracy against a model's own keys is promised up to here; see docs/kernel.md."""


def exact_table(positions: int = 4096, *, interleaved: bool = True) -> RopeTable:
    return RopeTable(exact_cache(Rotary(1e4, positions)), interleaved)


@cache
def model_table(model: str) -> RopeTable:
    rotary = MODELS[model]
    return RopeTable.from_model_cache(model_cache(rotary), interleaved=rotary.interleaved)


def keys(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, 64, generator=torch.Generator().manual_seed(seed)).to(dtype)


# --- against the models ------------------------------------------------------------------------


def positions_of(rotary: Rotary, sign: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sources and targets: half anywhere, half at opposite ends of what is promised."""
    draw = torch.Generator().manual_seed(rotary.positions + sign)
    reach = min(rotary.positions, LONGEST_DELTA)
    anywhere = torch.randint(0, rotary.positions, (2, rows // 2), generator=draw)
    low = torch.randint(0, reach // 16, (1, rows // 2), generator=draw)
    far = torch.cat([low, reach - 1 - low])
    low, high = torch.cat([anywhere, far], dim=1).sort(dim=0).values
    keep = high - low < LONGEST_DELTA
    return (low[keep], high[keep]) if sign > 0 else (high[keep], low[keep])


@pytest.mark.parametrize("sign", [1, -1], ids=["forward", "back"])
@pytest.mark.parametrize("model", MODELS)
def test_moved_key_is_what_the_model_computes_at_the_target(model: str, sign: int) -> None:
    rotary = MODELS[model]
    placed, table = model_cache(rotary), model_table(model)
    source, target = positions_of(rotary, sign, 8192)
    fresh = keys(1, source.numel())
    stored = turn(fresh, placed[source], rotary.interleaved).bfloat16()

    moved = rotate(stored, target - source, table)

    exact = turn(stored.double(), signed_rows(table.cos_sin, target - source), rotary.interleaved)
    assert relative_error(moved, exact) <= 1.7e-3
    assert ulps_at_pair_norm(moved, exact, rotary.interleaved) <= 0.501
    wanted = turn(fresh, placed[target], rotary.interleaved)
    assert relative_error(moved, wanted) <= 3.0e-3


@pytest.mark.parametrize("model", MODELS)
def test_every_delta_of_the_table(model: str) -> None:
    rotary = MODELS[model]
    table = model_table(model)
    delta = torch.arange(-rotary.positions + 1, rotary.positions, 7)
    stored = keys(2, 64, dtype=torch.bfloat16)[torch.arange(delta.numel()) % 64]
    exact = turn(stored.double(), signed_rows(table.cos_sin, delta), rotary.interleaved)
    moved = rotate(stored, delta, table)
    error = (moved.double() - exact).norm(dim=-1) / exact.norm(dim=-1)
    # Single rows scatter round the mean of 1.66e-3; half a last place bounds each number.
    assert float(error.square().mean().sqrt()) <= 1.7e-3
    assert float(error.max()) <= 2.0**-8
    assert ulps_at_pair_norm(moved, exact, rotary.interleaved) <= 0.501


@pytest.mark.parametrize("model", MODELS)
def test_mscale_is_divided_out(model: str) -> None:
    rotary = MODELS[model]
    table = model_table(model)
    given_scale = RopeTable.from_model_cache(
        model_cache(rotary), mscale(rotary), interleaved=rotary.interleaved
    )
    assert torch.allclose(table.cos_sin, given_scale.cos_sin, rtol=0, atol=2e-7)
    k_r = keys(3, 4096)
    delta = torch.randint(-rotary.positions + 1, rotary.positions, (4096,))
    before, after = k_r.norm(dim=-1), rotate(k_r, delta, table).norm(dim=-1)
    assert torch.allclose(before, after, rtol=1e-6, atol=0)


def test_transformers_rotary_modules_agree() -> None:
    v2 = pytest.importorskip("transformers.models.deepseek_v2.modeling_deepseek_v2")
    v3 = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    parameters = {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 40.0,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 0.707,
        "mscale_all_dim": 0.0,
        "original_max_position_embeddings": 4096,
    }
    common = {"max_position_embeddings": 163_840, "qk_rope_head_dim": 64, "head_dim": 64}
    source = torch.arange(0, 60_000, 601)[None]
    target = (source * 7 + 13) % 60_000
    fresh = keys(4, 1, 1, source.numel())

    module = v2.DeepseekV2RotaryEmbedding(v2.DeepseekV2Config(rope_parameters=parameters, **common))
    place = lambda p: v2.apply_rotary_emb(fresh, fresh, module(fresh, p))[1]  # noqa: E731
    table = RopeTable.from_model_cache(_read_cache(module, v2=True), interleaved=True)
    moved = rotate(place(source), (target - source)[:, None], table)
    assert relative_error(moved, place(target)) <= 1e-3

    module = v3.DeepseekV3RotaryEmbedding(v3.DeepseekV3Config(rope_parameters=parameters, **common))
    place = lambda p: v3.apply_rotary_pos_emb_interleave(fresh, fresh, *module(fresh, p))[1]  # noqa: E731
    # This module writes its keys half-split, whatever pairs they came in.
    table = RopeTable.from_model_cache(_read_cache(module, v2=False), interleaved=False)
    moved = rotate(place(source), (target - source)[:, None], table)
    assert relative_error(moved, place(target)) <= 1e-3


def _read_cache(module: torch.nn.Module, *, v2: bool) -> torch.Tensor:
    positions = torch.arange(60_000)[None]
    if v2:
        turns = module(torch.zeros(1), positions)[0]
        return torch.cat([turns.real, turns.imag], dim=-1)
    cos, sin = module(torch.zeros(1), positions)
    return torch.cat([cos[0, :, :PAIRS], sin[0, :, :PAIRS]], dim=-1)


# --- properties --------------------------------------------------------------------------------

deltas = st.integers(-2000, 2000)
layouts = st.booleans()
seeds = st.integers(0, 2**31)
TABLES = {layout: exact_table(interleaved=layout) for layout in (True, False)}


@given(deltas, deltas, layouts, seeds)
def test_two_moves_are_one_move(a: int, b: int, interleaved: bool, seed: int) -> None:
    table, k_r = TABLES[interleaved], keys(seed, 3)
    twice = rotate(rotate(k_r, a, table), b, table)
    assert torch.allclose(twice, rotate(k_r, a + b, table), rtol=0, atol=2e-6)


@given(deltas, layouts, seeds)
def test_norm_is_kept_and_a_move_can_be_undone(delta: int, interleaved: bool, seed: int) -> None:
    table, k_r = TABLES[interleaved], keys(seed, 3)
    moved = rotate(k_r, delta, table)
    assert torch.allclose(moved.norm(dim=-1), k_r.norm(dim=-1), rtol=1e-6, atol=0)
    assert torch.allclose(rotate(moved, -delta, table), k_r, rtol=0, atol=2e-6)


@given(deltas, layouts, seeds)
def test_attention_scores_depend_on_the_distance_alone(
    delta: int, interleaved: bool, seed: int
) -> None:
    table = TABLES[interleaved]
    query, key = keys(seed, 1)[0], keys(seed + 1, 1)[0]
    still = query @ key
    together = rotate(query, delta, table) @ rotate(key, delta, table)
    assert abs(float(still - together)) <= 1e-4


@given(deltas, layouts, seeds, st.sampled_from([torch.bfloat16, torch.float16, torch.float32]))
def test_one_rounding(delta: int, interleaved: bool, seed: int, dtype: torch.dtype) -> None:
    table, k_r = TABLES[interleaved], keys(seed, 3, dtype=dtype)
    single = rotate(k_r.float(), delta, table).to(dtype)
    assert torch.equal(rotate(k_r, delta, table), single)


@given(layouts, seeds, st.lists(st.integers(-4095, 4095), min_size=1, max_size=8))
def test_deltas_of_a_tensor_are_deltas_of_its_rows(
    interleaved: bool, seed: int, row_deltas: list[int]
) -> None:
    table, k_r = TABLES[interleaved], keys(seed, len(row_deltas), dtype=torch.bfloat16)
    together = rotate(k_r, torch.tensor(row_deltas), table)
    for row, delta in enumerate(row_deltas):
        assert torch.equal(together[row], rotate(k_r[row], delta, table))


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_delta_zero_keeps_every_bit(dtype: torch.dtype, interleaved: bool) -> None:
    special = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-40])
    k_r = special.repeat(11)[:64].to(dtype).repeat(3, 1)
    moved = rotate(k_r, torch.tensor([0, 5, 0]), TABLES[interleaved])
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    assert torch.equal(moved[::2].view(bits), k_r[::2].view(bits))
    assert rotate(k_r, 0, TABLES[interleaved]).data_ptr() != k_r.data_ptr()


def test_rotate_accepts_no_rows_and_any_leading_shape() -> None:
    table = TABLES[True]
    assert rotate(keys(0, 0), 3, table).shape == (0, 64)
    assert rotate(keys(0, 0), torch.empty(0, dtype=torch.int64), table).shape == (0, 64)
    k_r = keys(5, 2, 3, 4)
    per_token = torch.tensor([1, -2, 3, 0], dtype=torch.int32)
    assert torch.equal(rotate(k_r, per_token, table)[1, 2, 1], rotate(k_r[1, 2, 1], -2, table))


# --- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [4096, -4096, 10**12, torch.tensor([0, 4096]), -(2**63)])
def test_delta_beyond_the_table(delta: int | torch.Tensor) -> None:
    with pytest.raises(DeltaOutOfRange, match=r"table of 4096 positions allows -4095 to 4095"):
        rotate(keys(0, 2), delta, TABLES[True])


@pytest.mark.parametrize(
    ("delta", "message"),
    [
        (1.0, "int or an integer tensor"),
        (True, "int or an integer tensor"),
        (torch.tensor([1.0, 2.0]), "int64 or int32"),
        (torch.tensor([1, 2, 3]), "does not broadcast"),
    ],
)
def test_delta_of_the_wrong_kind(delta: object, message: str) -> None:
    with pytest.raises(InvalidTensor, match=message):
        rotate(keys(0, 2), delta, TABLES[True])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "k_r", [torch.zeros(2, 63), torch.zeros(2, 64, dtype=torch.int32), torch.zeros(())]
)
def test_keys_of_the_wrong_shape_or_dtype(k_r: torch.Tensor) -> None:
    with pytest.raises(InvalidTensor, match=r"k_r must be"):
        rotate(k_r, 1, TABLES[True])


def test_table_refuses_a_scaled_cache() -> None:
    scaled = exact_cache(Rotary(1e4, 64)) * 1.26
    with pytest.raises(InvalidParams, match="divide YaRN's mscale out"):
        RopeTable(scaled, interleaved=True)
    with pytest.raises(InvalidParams, match="no pure rotation"):
        RopeTable.from_model_cache(scaled, mscale=1.2, interleaved=True)
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidParams, match="positive finite"):
            RopeTable.from_model_cache(scaled, mscale=wrong, interleaved=True)


def test_table_refuses_what_is_not_a_table() -> None:
    good = exact_cache(Rotary(1e4, 64))
    for bad in (good.double(), good[:, :32], good[:0], good[0], good.repeat(1, 2)[:, ::2]):
        with pytest.raises(InvalidTensor):
            RopeTable(bad, interleaved=True)
    with pytest.raises(InvalidTensor, match="compute it again"):
        RopeTable.from_model_cache(good.bfloat16(), interleaved=True)
    broken = good.clone()
    broken[7, 3] = float("nan")
    with pytest.raises(InvalidParams):
        RopeTable(broken, interleaved=True)
    with pytest.raises(InvalidParams, match="row 0"):
        RopeTable(good[1:].contiguous(), interleaved=True)


def test_table_refuses_frequencies_that_change_with_the_position() -> None:
    short, long = exact_cache(Rotary(1e4, 64)), exact_cache(Rotary(5e5, 256))
    with pytest.raises(Unsupported, match="position 64 of cos_sin"):
        RopeTable(torch.cat([short, long[64:]]), interleaved=True)


# --- relocation --------------------------------------------------------------------------------


def pool(layers: int, slots: int, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(layers * slots)
    return [torch.randn(slots, 1, 576, generator=draw).to(dtype) for _ in range(layers)]


@settings(deadline=None)
@given(seeds, st.integers(1, 40), layouts, st.sampled_from([torch.int32, torch.int64]))
def test_relocation_copies_c_kv_and_turns_k_r(
    seed: int, rows: int, interleaved: bool, delta_dtype: torch.dtype
) -> None:
    draw = torch.Generator().manual_seed(seed)
    slots = torch.randperm(100, generator=draw)
    target = slots[:rows]
    source = slots[rows:][torch.randint(0, 100 - rows, (rows,), generator=draw)]
    delta = torch.randint(-4095, 4096, (rows,), generator=draw).to(delta_dtype)
    layers = pool(3, 100)
    before = [layer.clone() for layer in layers]

    relocate_rows(layers, source, target, delta, TABLES[interleaved])

    untouched = torch.ones(100, dtype=torch.bool)
    untouched[target] = False
    for layer, old in zip(layers, before, strict=True):
        assert torch.equal(layer[target, 0, :512], old[source, 0, :512])
        turned = rotate(old[source, 0, 512:], delta, TABLES[interleaved])
        assert torch.equal(layer[target, 0, 512:], turned)
        assert torch.equal(layer[untouched], old[untouched])


def test_relocation_with_row_strides_and_two_dimensional_layers() -> None:
    wide = torch.randn(10, 1, 640)
    flat = torch.randn(10, 576)
    source, target = torch.tensor([1, 2]), torch.tensor([8, 9])
    old_wide, old_flat = wide.clone(), flat.clone()
    relocate_rows([wide[..., :576], flat], source, target, torch.tensor([3, 0]), TABLES[True])
    assert torch.equal(wide[8:, 0, :512], old_wide[1:3, 0, :512])
    assert torch.equal(wide[9], torch.cat([old_wide[2, :, :576], old_wide[9, :, 576:]], dim=-1))
    assert torch.equal(flat[8, 512:], rotate(old_flat[1, 512:], 3, TABLES[True]))
    assert torch.equal(wide[..., 576:], old_wide[..., 576:])


def test_rows_of_others_may_hold_nan() -> None:
    layers = pool(2, 20)
    for layer in layers:
        layer[4:] = float("nan")
    relocate_rows(layers, torch.arange(4), torch.arange(10, 14), torch.arange(4), TABLES[True])
    assert all(torch.isfinite(layer[10:14]).all() for layer in layers)
    assert all(torch.isnan(layer[14:]).all() for layer in layers)


@pytest.mark.parametrize("storage", [torch.float8_e4m3fn, torch.uint8])
@pytest.mark.parametrize("interleaved", [True, False])
def test_fp8_rows_are_turned_when_asked_for(storage: torch.dtype, interleaved: bool) -> None:
    layers = [layer.to(torch.float8_e4m3fn).view(storage) for layer in pool(2, 64, torch.float32)]
    layers[0].view(torch.float8_e4m3fn)[0, 0, 512:] = 448.0
    old = [layer.clone() for layer in layers]
    source, target = torch.arange(20), torch.arange(30, 50)
    delta = torch.arange(20) * 101 - 1010
    arguments = (source, target, delta, TABLES[interleaved])
    with pytest.raises(Unsupported, match="allow_fp8=True"):
        relocate_rows(layers, *arguments)
    relocate_rows(layers, *arguments, allow_fp8=True)
    for layer, before in zip(layers, old, strict=True):
        bytes_now, bytes_then = layer.view(torch.uint8), before.view(torch.uint8)
        assert torch.equal(bytes_now[30:50, 0, :512], bytes_then[:20, 0, :512])
        assert torch.equal(bytes_now[40, 0], bytes_then[10, 0])  # delta 0
        stored = before.view(torch.float8_e4m3fn)[:20, 0, 512:].float()
        exact = turn(
            stored.double(), signed_rows(TABLES[interleaved].cos_sin, delta), interleaved
        ).clamp(-448, 448)
        got = layer.view(torch.float8_e4m3fn)[30:50, 0, 512:].float()
        assert torch.isfinite(got).all()
        assert relative_error(got, exact) <= 2**-4


def test_overlap_is_an_error_and_writes_nothing() -> None:
    layers = pool(2, 10)
    before = [layer.clone() for layer in layers]
    zero = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(OverlappingSlots, match="slot 3 is both a source and a target"):
        relocate_rows(layers, torch.tensor([1, 3]), torch.tensor([3, 4]), zero, TABLES[True])
    with pytest.raises(OverlappingSlots, match="twice"):
        relocate_rows(layers, torch.tensor([1, 3]), torch.tensor([4, 4]), zero, TABLES[True])
    with pytest.raises(OverlappingSlots):
        relocate_rows(layers, torch.tensor([1]), torch.tensor([1]), zero[:1], TABLES[True])
    for bad in (-1, 10):
        with pytest.raises(InvalidSlots, match=f"slot {bad}: the layers have slots 0 to 9"):
            relocate_rows(layers, torch.tensor([1, bad]), torch.tensor([3, 4]), zero, TABLES[True])
        with pytest.raises(InvalidSlots, match=f"target slot {bad}"):
            relocate_rows(layers, torch.tensor([1, 2]), torch.tensor([3, bad]), zero, TABLES[True])
    with pytest.raises(DeltaOutOfRange):
        relocate_rows(
            layers, torch.tensor([1]), torch.tensor([2]), torch.tensor([4096]), TABLES[True]
        )
    assert all(torch.equal(a, b) for a, b in zip(layers, before, strict=True))


def test_relocation_of_nothing() -> None:
    none = torch.empty(0, dtype=torch.int64)
    relocate_rows(pool(1, 4), none, none, none, TABLES[True])


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([], "empty"),
        ([torch.zeros(4, 1, 656)], "576"),
        ([torch.zeros(4, 2, 576)], "576"),
        ([torch.zeros(4, 1, 576), torch.zeros(5, 1, 576)], "layer 1"),
        ([torch.zeros(4, 1, 576), torch.zeros(4, 1, 576).half()], "layer 1"),
        ([torch.zeros(4, 1, 576, dtype=torch.int32)], "e4m3"),
        ([torch.zeros(4, 1, 1152)[..., ::2]], "adjacent"),
        ([torch.zeros(1, 1, 576).expand(4, 1, 576)], "overlap"),
    ],
)
def test_layers_of_the_wrong_kind(layers: list[torch.Tensor], message: str) -> None:
    one = torch.tensor([1])
    with pytest.raises(InvalidTensor, match=message):
        relocate_rows(layers, one, one + 1, one, TABLES[True])


def test_indices_of_the_wrong_kind() -> None:
    layers, one = pool(1, 8), torch.tensor([1])
    with pytest.raises(InvalidTensor, match="source_slots must be int64"):
        relocate_rows(layers, one.int(), one + 1, one, TABLES[True])
    with pytest.raises(InvalidTensor, match="target_slots must be int64"):
        relocate_rows(layers, one, torch.tensor([2, 3]), one, TABLES[True])
    with pytest.raises(InvalidTensor, match="deltas must be int64 or int32"):
        relocate_rows(layers, one, one + 1, one.float(), TABLES[True])
    with pytest.raises(InvalidTensor, match="source_slots must be int64"):
        relocate_rows(layers, one[None], one[None] + 1, one[None], TABLES[True])
    with pytest.raises(InvalidTensor, match="source_slots must be a tensor, got list"):
        relocate_rows(layers, [1], one + 1, one, TABLES[True])  # type: ignore[arg-type]
    with pytest.raises(InvalidTensor, match="deltas must be a tensor, got int"):
        relocate_rows(layers, one, one + 1, 5, TABLES[True])  # type: ignore[arg-type]


def test_operator_contract() -> None:
    layers, source = pool(2, 16), torch.arange(4)
    arguments = (layers, source, source + 8, source - 2, TABLES[True].cos_sin, True)
    torch.library.opcheck(torch.ops.irminsul.relocate_rows.default, arguments)
