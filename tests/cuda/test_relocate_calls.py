"""Calls of the relocation kernels: faults, streams, graphs, compilers, sanitizers."""

import subprocess
import sys
import threading

import pytest
import torch
from irminsul._rotation_reference import relocate_reference
from irminsul.errors import DeltaOutOfRange, InvalidSlots, IrminsulError, OverlappingSlots
from irminsul.rotation import check_relocations, relocate_rows
from relocate_cases import FORMATS, POSITIONS, assert_same_as_reference, job, pool, table

pytestmark = pytest.mark.gpu

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


def test_each_call_sees_what_the_one_before_wrote() -> None:
    """Kernels of a call start while those before it run; rows must be read when they are there."""
    rope, rows, hops = table(), 3000, 24
    layers = pool(9, 4 * rows)
    places = torch.randperm(4 * rows, device="cuda").view(4, rows)
    steps = [torch.randint(-900, 900, (rows,), device="cuda") for _ in range(hops)]
    expected = [layer.clone() for layer in layers]
    for hop, delta in enumerate(steps):
        relocate_rows(layers, places[hop % 4], places[(hop + 1) % 4], delta, rope)
    check_relocations()
    for hop, delta in enumerate(steps):
        here, there = places[hop % 4], places[(hop + 1) % 4]
        relocate_reference(expected, here, there, delta, rope.cos_sin, True)
    assert all(torch.equal(a, b) for a, b in zip(layers, expected, strict=True))


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
