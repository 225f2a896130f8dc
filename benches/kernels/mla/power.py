"""Attention alone for a while, at the GPU's power limit -> clock, power and energy of a call.

Side by side the ways see one clock, and cycles decide; alone, energy does. Knows NVML's energy
counter; nothing of how a call is made.

    python benches/kernels/mla/power.py --out benches/kernels/mla/results/h200_power.json
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import gpu_report
from graphs import Call, capture, keep_busy
from rivals import flash_mla_call
from run import Bench
from workloads import Case, whole_pages

CASES = [Case(1, 16, 512, 32_768), Case(128, 128, 1, 8192)]
CALLS = 12  # in one graph
SM_CLOCK = 1  # NVML_CLOCK_SM


class Meter:
    """NVML's readings of the GPU that torch uses."""

    def __init__(self) -> None:
        self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self.nvml.nvmlInit_v2()
        self.handle = ctypes.c_void_p()
        name = f"GPU-{torch.cuda.get_device_properties().uuid}".encode()
        if error := self.nvml.nvmlDeviceGetHandleByUUID(name, ctypes.byref(self.handle)):
            raise RuntimeError(f"NVML does not know {name.decode()}: error {error}")

    def joule(self) -> float:
        """Energy since the driver was loaded."""
        value = ctypes.c_ulonglong()
        self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.handle, ctypes.byref(value))
        return value.value / 1e3

    def megahertz(self) -> int:
        """Clock of the multiprocessors now."""
        value = ctypes.c_uint()
        self.nvml.nvmlDeviceGetClockInfo(self.handle, SM_CLOCK, ctypes.byref(value))
        return value.value


@dataclass
class Held:
    """What one way did while it ran alone."""

    us: float
    watt: float
    megahertz: float
    millijoule: float


def hold(meter: Meter, replay: Call, calls: int, *, seconds: float, warmup: float = 0.4) -> Held:
    """Replay for `warmup`, then for `seconds` between two readings of the energy counter."""
    keep_busy([replay], warmup)
    clocks, replays = [], 0
    energy, start = meter.joule(), time.monotonic()
    while time.monotonic() - start < seconds:
        replay()
        replay()
        clocks.append(meter.megahertz())
        torch.cuda.synchronize()
        replays += 2
    spent, energy = time.monotonic() - start, meter.joule() - energy
    made = replays * calls
    us, millijoule = spent / made * 1e6, energy / made * 1e3
    return Held(us, energy / spent, statistics.mean(clocks), millijoule)


def ways_of(bench: Bench, case: Case) -> dict[str, Call]:
    """The same attention by this kernel and by FlashMLA, over one set of keys."""
    q = bench.queries(case)
    pages = bench.pool.pages(case.batch, case.keys // 64)
    table = whole_pages(pages, case.keys, rotated=False)
    ways: dict[str, Call] = {"this kernel": bench.call(case, q, table)}
    if flash := flash_mla_call(case, q, bench.pool.cache, pages):
        ways["FlashMLA"] = flash
    return ways


def rows_of(case: str, way: str, flop: float, held: Held) -> list[dict[str, Any]]:
    """One way's figures as rows of the report."""
    print(
        f"{case:<46}{way:<12}{held.us:9.1f} us {flop / held.us / 1e6:6.0f} TFLOP/s "
        f"{held.watt:5.0f} W {held.megahertz:6.0f} MHz {held.millijoule:8.1f} mJ",
        flush=True,
    )
    figures = {
        "rate, alone": (flop / held.us / 1e6, "TFLOP/s"),
        "power": (held.watt, "W"),
        "clock": (held.megahertz, "MHz"),
        "energy of a call": (held.millijoule, "mJ"),
    }
    common = {"bar_id": "mla.power", "case": f"{case}, {way}", "bar": None, "samples": None}
    common |= {"rival": None, "rival_value": None}
    return [
        common | {"metric": metric, "value": round(value, 2), "unit": unit}
        for metric, (value, unit) in figures.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="results file to write")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each way")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    meter, bench = Meter(), Bench(rounds=1)
    a, b = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
    product = capture([lambda: a @ b] * CALLS)
    held = hold(meter, product.replay, CALLS, seconds=arguments.seconds)
    rows = rows_of("8192 x 8192 x 8192", "torch, bf16", 2.0 * 8192**3, held)
    for case in CASES:
        for way, call in ways_of(bench, case).items():
            graph = capture([call] * CALLS)
            held = hold(meter, graph.replay, CALLS, seconds=arguments.seconds)
            rows += rows_of(case.name, way, case.flop, held)
    command = "python benches/kernels/mla/power.py --out FILE"
    gpu_report.save(arguments.out, command, rows)


if __name__ == "__main__":
    main()
