"""Times and errors of relocate_rows on one GPU -> a JSON file of results.

Every size is timed in the same process against the device's own copy of as many bytes, against the
torch reference, and against SGLang's kernels that copy rows of all layers (none rotates) where they
can be imported. Times are of CUDA graph replays over inputs that rotate through more than the L2.

    python benches/kernels/relocate/run.py --out benches/kernels/relocate/results/h200.json
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import gpu_report
from accuracy import figures_of
from graphs import capture, timed
from irminsul._rotation_reference import relocate_reference
from irminsul.rotation import RopeTable, check_relocations, relocate_rows
from rivals import sglang_calls
from rotary_models import MODELS, model_cache

ROW_BYTES = {torch.bfloat16: 1152, torch.float8_e4m3fn: 576}
SPAN = 128  # rows that move together: reused text is contiguous, and so are most slots
ROTATE_BYTES = 2 << 30  # several times the 60 MB of L2
REPLAYS = 21


@dataclass(frozen=True)
class Case:
    tokens: int
    layers: int = 27
    dtype: torch.dtype = torch.bfloat16
    interleaved: bool = True
    span: int = SPAN

    @property
    def bytes(self) -> int:
        """Read and written."""
        return 2 * self.tokens * self.layers * ROW_BYTES[self.dtype]

    @property
    def name(self) -> str:
        kind = "bf16" if self.dtype == torch.bfloat16 else "e4m3"
        layout = "pairs" if self.interleaved else "halves"
        place = "scattered" if self.span == 1 else f"spans of {self.span}"
        return f"{self.tokens} tokens x {self.layers} layers, {kind}, {layout}, {place}"


SIZES = (128, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072)
CASES = [
    *(Case(tokens) for tokens in SIZES),
    *(Case(tokens, span=1) for tokens in (4096, 32_768)),
    *(Case(tokens, layers=61) for tokens in (128, 4096, 32_768)),
    *(Case(tokens, interleaved=False) for tokens in (4096, 32_768)),
    *(Case(tokens, dtype=torch.float8_e4m3fn) for tokens in (4096, 32_768)),
    Case(4096, dtype=torch.float8_e4m3fn, span=1),
]
QUICK = [
    *(Case(tokens) for tokens in (128, 1024, 4096, 32_768)),
    Case(4096, span=1),
    Case(32_768, span=1),
    Case(4096, layers=61),
    Case(4096, interleaved=False),
    Case(4096, dtype=torch.float8_e4m3fn),
]
AGAINST_RIVALS = {
    *(Case(tokens) for tokens in (128, 1024, 4096, 32_768)),
    Case(32_768, dtype=torch.float8_e4m3fn),
}

Job = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def jobs_of(case: Case, slots: int, positions: int) -> list[Job]:
    """Slots and deltas of as many calls as it takes to leave the L2 behind."""
    count = max(1, min(32, ROTATE_BYTES // case.bytes))
    jobs = []
    for _ in range(count):
        starts = torch.randperm(slots // case.span, device="cuda") * case.span
        rows = (starts[:, None] + torch.arange(case.span, device="cuda")).flatten()
        delta = torch.randint(-positions + 1, positions, (case.tokens // case.span,))
        delta = delta.cuda().repeat_interleave(case.span)
        jobs.append((rows[: case.tokens], rows[case.tokens : 2 * case.tokens], delta))
    return jobs


def replayed(calls: list[Callable[[], object]]) -> list[float]:
    """Microseconds per call in replays of one graph that holds them all."""
    graph = capture(calls)
    # Capturing gives memory of earlier cases back to the driver, which clears it in the background:
    # after the largest ones, copies of 60 us were 6 us slower for a while.
    time.sleep(0.2)
    return timed(graph.replay, len(calls), rounds=REPLAYS, warmup=3)


def device_copy(case: Case, calls: int) -> list[float]:
    sets = [torch.empty(2, case.bytes // 2, dtype=torch.uint8, device="cuda") for _ in range(calls)]
    for pair in sets:
        pair.random_(0, 255)
    return replayed([lambda pair=pair: pair[1].copy_(pair[0]) for pair in sets])  # type: ignore[misc]


class Bench:
    """Buffers of the largest case, shared by all, and the rows of the report."""

    def __init__(self) -> None:
        rotary = MODELS["DeepSeek-V3 and R1"]
        cache = model_cache(rotary).cuda()
        self.tables = {
            layout: RopeTable.from_model_cache(cache, interleaved=layout)
            for layout in (True, False)
        }
        self.slots = 2 * max(SIZES) + 1024
        self.store = torch.randn(61, self.slots, 576, device="cuda", dtype=torch.bfloat16)
        self.rows: list[dict[str, Any]] = []

    def layers_of(self, case: Case) -> list[torch.Tensor]:
        store = self.store
        if case.dtype != torch.bfloat16:
            store = torch.randn(61, self.slots, 576, device="cuda").to(case.dtype)
        return [store[i, :, None] for i in range(case.layers)]

    def add(
        self, bar_id: str, case: str, metric: str, value: float, unit: str, **more: Any
    ) -> None:
        row = {"bar_id": bar_id, "case": case, "metric": metric, "value": value, "unit": unit}
        row |= {"rival": None, "rival_value": None, "bar": None, "samples": None}
        self.rows.append(row | more)

    def speed(self, case: Case, *, rivals: bool) -> None:
        table = self.tables[case.interleaved]
        layers = self.layers_of(case)
        jobs = jobs_of(case, self.slots, table.max_positions)
        fp8 = case.dtype != torch.bfloat16
        samples = replayed(
            [lambda job=job: relocate_rows(layers, *job, table, allow_fp8=fp8) for job in jobs]  # type: ignore[misc]
        )
        check_relocations()
        ours = statistics.median(samples)
        copy = statistics.median(device_copy(case, len(jobs)))
        rate = case.bytes / ours / 1e3
        line = f"{case.name:<62}{ours:10.1f} us {rate:8.0f} GB/s {copy / ours:7.3f} of copy"
        self.add_speed(case, ours, copy, samples)
        if rivals:
            line += self.rivals(case, layers, jobs, table, ours)
        print(line, flush=True)

    def add_speed(self, case: Case, ours: float, copy: float, samples: list[float]) -> None:
        plain = case == Case(case.tokens, case.layers)
        big = case.tokens >= 4096 and case.layers >= 27
        # Reused text moves in spans; single rows anywhere are held to the same bar apart from it.
        part = "" if big and case.span > 1 else "-scattered" if big else "-small"
        self.add(
            f"relocate.1{part}",
            case.name,
            "bandwidth, read and written",
            round(case.bytes / ours / 1e3, 1),
            "GB/s",
            rival="device-to-device copy of as many bytes",
            rival_value=round(case.bytes / copy / 1e3, 1),
            bar=">= 0.85 of the rival" if big else None,
        )
        bars = {(32_768, 27): ("relocate.1", "< 600"), (128, 27): ("relocate.1", "< 12")}
        bar_id, bar = bars.get((case.tokens, case.layers), ("relocate.time", None))
        if not plain:
            bar_id, bar = "relocate.time", None
        kept = [round(sample, 2) for sample in samples]
        self.add(
            bar_id, case.name, "time in a CUDA graph", round(ours, 2), "us", bar=bar, samples=kept
        )

    def rivals(
        self,
        case: Case,
        layers: list[torch.Tensor],
        jobs: list[Job],
        table: RopeTable,
        ours: float,
    ) -> str:
        loop = timed(
            lambda: relocate_reference(layers, *jobs[0], table.cos_sin, table.interleaved),
            1,
            rounds=REPLAYS,
            warmup=1,
        )
        times = {"torch reference": statistics.median(loop)}
        if case.tokens <= 32_768:
            calls = sglang_calls(layers, ROW_BYTES[case.dtype])
            times |= {
                name: statistics.median(replayed([partial(call, *job[:2]) for job in jobs]))
                for name, call in calls.items()
            }
        for rival, value in times.items():
            self.add(
                "relocate.rival",
                case.name,
                "time",
                round(ours, 2),
                "us",
                rival=rival,
                rival_value=round(value, 2),
            )
        return "".join(f"  | {name}: {value:.0f} us" for name, value in times.items())

    def host_time(self, layer_count: int) -> None:
        """Microseconds of Python per call, while the GPU has nothing to wait for."""
        table, layers = self.tables[True], [self.store[i, :, None] for i in range(layer_count)]
        job = jobs_of(Case(128), self.slots, table.max_positions)[0]
        samples = []
        for _ in range(200):
            start = time.perf_counter()
            relocate_rows(layers, *job, table)
            samples.append((time.perf_counter() - start) * 1e6)
            torch.cuda.synchronize()
        value = round(statistics.median(samples), 1)
        self.add("relocate.host", f"{layer_count} layers", "host time of a call", value, "us")
        print(f"host time, {layer_count} layers: {value} us", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="results file to write")
    parser.add_argument("--quick", action="store_true", help="few sizes, times only")
    parser.add_argument("--times", action="store_true", help="times only: no rivals, no errors")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    bench = Bench()
    print(gpu_report.machine())
    brief = arguments.quick or arguments.times
    for case in QUICK if arguments.quick else CASES:
        bench.speed(case, rivals=case in AGAINST_RIVALS and not brief)
    if not brief:
        for layers in (27, 61):
            bench.host_time(layers)
        for model, rotary in MODELS.items():
            for metric, value, unit, bar in figures_of(rotary):
                bench.add("relocate.2", model, metric, value, unit, bar=bar)
                print(f"{model:<22}{metric:<56}{value:>12} {unit}", flush=True)
    command = "python benches/kernels/relocate/run.py --out FILE" + " --times" * arguments.times
    gpu_report.save(arguments.out, command, bench.rows)


if __name__ == "__main__":
    main()
