"""The relocation kernels against the torch reference (bit for bit) and float64."""

import subprocess
import sys
import threading

import pytest
import torch
from irminsul._rotation_reference import relocate_reference
from irminsul.errors import DeltaOutOfRange, InvalidSlots, IrminsulError, OverlappingSlots
from irminsul.rotation import RopeTable, check_relocations, relocate_rows, rotate
from rotary_models import (
    MODELS,
    Rotary,
    exact_cache,
    model_cache,
    mscale,
    relative_error,
    signed_rows,
    turn,
    ulps_at_pair_norm,
)

pytestmark = pytest.mark.gpu

POSITIONS = 4096
FORMATS = {
    "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "bytes": torch.uint8,
}


def table(*, interleaved: bool = True) -> RopeTable:
    return RopeTable(exact_cache(Rotary(1e4, POSITIONS)).cuda(), interleaved)


def pool(
    layers: int, slots: int, dtype: torch.dtype = torch.bfloat16, pad: int = 0, shift: int = 0
) -> list[torch.Tensor]:
    """Layers of random rows; ``pad`` numbers between rows, ``shift`` numbers before the first."""
    width = 576 + pad
    draw = torch.Generator("cuda").manual_seed(layers + slots)
    out = []
    for _ in range(layers):
        store = torch.randn(slots * width + shift, device="cuda", generator=draw)
        # torch has no uint8 randn; the bytes of e4m3 numbers are what such a pool holds.
        kept = store.to(torch.float8_e4m3fn if dtype == torch.uint8 else dtype).view(dtype)
        out.append(kept[shift:].view(slots, 1, width)[..., :576])
    return out


def job(
    rows: int, slots: int, seed: int = 0, delta_dtype: torch.dtype = torch.int64
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Disjoint source and target slots; sources repeat, deltas have both signs and zeros."""
    draw = torch.Generator("cuda").manual_seed(seed)
    order = torch.randperm(slots, device="cuda", generator=draw)
    target, free = order[:rows], order[rows:]
    pick = torch.randint(0, free.numel(), (rows,), device="cuda", generator=draw)
    delta = torch.randint(-POSITIONS + 1, POSITIONS, (rows,), device="cuda", generator=draw)
    delta[::5] = 0
    return free[pick], target, delta.to(delta_dtype)


def bits(layer: torch.Tensor) -> torch.Tensor:
    return layer.view(torch.int16 if layer.dtype == torch.bfloat16 else torch.uint8)


def twin(layer: torch.Tensor) -> torch.Tensor:
    """Copy a layer with everything between its rows."""
    store = layer.untyped_storage().clone()
    place = (layer.storage_offset(), layer.size(), layer.stride())
    return torch.empty(0, dtype=layer.dtype, device="cuda").set_(store, *place)


def memory(layer: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device="cuda").set_(layer.untyped_storage())


def assert_same_as_reference(
    layers: list[torch.Tensor],
    source: torch.Tensor,
    target: torch.Tensor,
    delta: torch.Tensor,
    rope: RopeTable,
) -> None:
    """Move with both and compare every byte, those between the rows too."""
    expected = [twin(layer) for layer in layers]
    relocate_reference(expected, source, target, delta, rope.cos_sin, rope.interleaved)
    relocate_rows(layers, source, target, delta, rope, allow_fp8=True)
    check_relocations()
    for layer, wanted in zip(layers, expected, strict=True):
        assert torch.equal(memory(layer), memory(wanted))


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


# --- faults --------------------------------------------------------------------------------------

Change = tuple[str, int, int, type[IrminsulError], str]
FAULTS: list[Change] = [
    ("target", 7, -1, InvalidSlots, "target slot -1 "),
    ("target", 0, 2**40, InvalidSlots, "target slot 1099511627776 "),
    ("source", 3, -(2**62), InvalidSlots, "source slot"),
    ("source", 9, 1000, InvalidSlots, "source slot 1000 "),
    ("delta", 5, POSITIONS, DeltaOutOfRange, f"delta {POSITIONS} "),
    ("delta", 5, -POSITIONS, DeltaOutOfRange, f"delta -{POSITIONS} "),
    ("delta", 1, -(2**63), DeltaOutOfRange, "delta -9223372036854775808 "),
]


@pytest.mark.parametrize(("which", "row", "value", "kind", "text"), FAULTS)
def test_bad_value_writes_nothing_and_is_reported(
    which: str, row: int, value: int, kind: type[IrminsulError], text: str
) -> None:
    layers = pool(3, 1000)
    before = [layer.clone() for layer in layers]
    source, target, delta = job(400, 1000)
    {"source": source, "target": target, "delta": delta}[which][row] = value
    relocate_rows(layers, source, target, delta, table())
    with pytest.raises(kind, match=rf"earlier relocate_rows on cuda:0 wrote nothing: {text}"):
        check_relocations()
    check_relocations()  # raised once
    assert all(torch.equal(a, b) for a, b in zip(layers, before, strict=True))
    assert_same_as_reference(layers, *job(400, 1000), table())


@pytest.mark.parametrize("rows", [2, 30, 1024, 1025, 20_000, 150_000])
@pytest.mark.parametrize("fault", ["overlap", "twice"])
def test_one_overlap_among_many_rows(rows: int, fault: str) -> None:
    layer = pool(1, 3 * rows)[0]
    before = layer.clone()
    for seed in range(3):
        source, target, delta = job(rows, 3 * rows, seed)
        a, b = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))[:2].tolist()
        if fault == "overlap":
            source[a] = target[b]
        else:
            target[a] = target[b]
        relocate_rows([layer], source, target, delta, table())
        with pytest.raises(OverlappingSlots, match=str(int(target[b]))):
            check_relocations()
        assert torch.equal(layer, before)


def test_row_moved_onto_itself_is_an_overlap() -> None:
    layers, one = pool(1, 10), torch.tensor([4], device="cuda")
    relocate_rows(layers, one, one, one, table())
    with pytest.raises(OverlappingSlots, match="slot 4"):
        check_relocations()


def test_next_call_raises_what_the_last_one_broke() -> None:
    layers = pool(1, 100)
    source, target, delta = job(10, 100)
    relocate_rows(layers, source, source, delta, table())
    torch.cuda.synchronize()
    before = layers[0].clone()
    with pytest.raises(OverlappingSlots, match="earlier"):
        relocate_rows(layers, source, target, delta, table())
    assert torch.equal(layers[0], before)
    relocate_rows(layers, source, target, delta, table())
    check_relocations(wait=True)
    check_relocations("cuda:0", wait=False)


# --- streams, graphs, compilers ------------------------------------------------------------------


def test_runs_on_the_current_stream() -> None:
    layers, rope = pool(4, 50_000), table()
    source, target, delta = job(20_000, 50_000)
    expected = [layer.clone() for layer in layers]
    relocate_reference(expected, source, target, delta, rope.cos_sin, True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        late = torch.zeros_like(delta)
        torch.cuda._sleep(20_000_000)  # the deltas become right only after this
        late.copy_(delta)
        relocate_rows(layers, source, target, late, rope)
        done = [layer.clone() for layer in layers]
    side.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(done, expected, strict=True))


def test_streams_and_threads_do_not_disturb_each_other() -> None:
    rope, failures = table(), []

    def work(seed: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            layers = pool(3, 900)
            for turn_number in range(20):
                arguments = job(300, 900, seed * 100 + turn_number)
                expected = [layer.clone() for layer in layers]
                relocate_reference(expected, *arguments, rope.cos_sin, True)
                relocate_rows(layers, *arguments, rope)
                if not all(torch.equal(a, b) for a, b in zip(layers, expected, strict=True)):
                    failures.append(seed)
            stream.synchronize()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check_relocations()
    assert not failures


def test_cuda_graph_replays_with_new_values() -> None:
    layers, rope = pool(3, 1000), table()
    source, target, delta = job(200, 1000)
    relocate_rows(layers, source, target, delta, rope)
    check_relocations()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        relocate_rows(layers, source, target, delta, rope)
    for seed in range(1, 6):
        expected = [layer.clone() for layer in layers]
        for held, new in zip((source, target, delta), job(200, 1000, seed), strict=True):
            held.copy_(new)
        relocate_reference(expected, source, target, delta, rope.cos_sin, True)
        graph.replay()
        check_relocations()
        assert all(torch.equal(a, b) for a, b in zip(layers, expected, strict=True))
    before = [layer.clone() for layer in layers]
    source[17] = target[130]
    graph.replay()
    with pytest.raises(OverlappingSlots):
        check_relocations()
    assert all(torch.equal(a, b) for a, b in zip(layers, before, strict=True))


CAPTURE_FIRST = """
import torch
from irminsul.rotation import RopeTable, check_relocations, relocate_rows
angle = torch.arange(64.0)[:, None] * torch.ones(32)
table = RopeTable(torch.cat([angle.cos(), angle.sin()], 1).cuda(), True)
layer = torch.randn(16, 1, 576, device="cuda").bfloat16()
source = torch.arange(4, device="cuda")
target = source + 8
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    relocate_rows([layer], source, target, source, table)
graph.replay()
check_relocations()
assert torch.equal(layer[8:12, :, :512], layer[:4, :, :512])
"""


def test_first_call_of_a_process_may_be_captured() -> None:
    run = subprocess.run(
        [sys.executable, "-c", CAPTURE_FIRST], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch's own compiler
def test_under_torch_compile() -> None:
    layers, rope = pool(2, 100), table()
    arguments = job(30, 100)
    expected = [layer.clone() for layer in layers]
    relocate_reference(expected, *arguments, rope.cos_sin, True)

    @torch.compile(fullgraph=True)
    def moved(
        buffers: list[torch.Tensor], source: torch.Tensor, target: torch.Tensor, delta: torch.Tensor
    ) -> torch.Tensor:
        relocate_rows(buffers, source, target, delta + 0, rope)
        return buffers[0].float().sum()

    total = moved(layers, *arguments)
    check_relocations()
    assert all(torch.equal(a, b) for a, b in zip(layers, expected, strict=True))
    assert torch.allclose(total, expected[0].float().sum())


def test_operator_contract() -> None:
    rope = table()
    arguments = (pool(2, 40), *job(10, 40), rope.cos_sin, True)
    torch.library.opcheck(torch.ops.irminsul.relocate_rows.default, arguments)


# --- under compute-sanitizer: small, and every kernel --------------------------------------------


@pytest.mark.parametrize("interleaved", [True, False], ids=["pairs", "halves"])
@pytest.mark.parametrize("name", ["bf16", "e4m3"])
def test_sanitized_kernels(name: str, interleaved: bool) -> None:
    rope = table(interleaved=interleaved)
    for rows, shift in ((1, 0), (70, 0), (2500, 0), (70, 1)):
        layers = pool(5, 2 * rows + 9, FORMATS[name], shift=shift)
        source, target, delta = job(rows, 2 * rows + 9)
        relocate_rows(layers, source, target, delta, rope, allow_fp8=True)
        check_relocations()
        source[rows // 2] = 2 * rows + 9
        relocate_rows(layers, source, target, delta, rope, allow_fp8=True)
        with pytest.raises(InvalidSlots):
            check_relocations()
