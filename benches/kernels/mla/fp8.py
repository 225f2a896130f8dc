"""Times of attention over an fp8 cache beside the same over bf16 -> a JSON file of results.

Both read the same tokens in one process, in turn: 656 bytes a token against 1,152.

    python benches/kernels/mla/fp8.py --out benches/kernels/mla/results/h200_fp8.json
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import gpu_report
from graphs import SETTLE, Call, capture, in_turn
from irminsul.attention import (
    FP8_ROW_BYTES,
    mla_attention,
    mla_attention_fp8,
    plan_attention,
    quantize_rows,
)
from workloads import ROW_BYTES, SCALE, Case, Pool, rope_table, whole_pages

CASES = [
    Case(128, 16, 1, 8192),
    Case(64, 16, 1, 32_768),
    Case(8, 16, 1, 131_072),
    Case(1, 16, 1, 32_768),
    Case(1, 16, 1, 131_072),
    Case(64, 8, 1, 8192),
    Case(64, 32, 1, 8192),
    Case(64, 16, 4, 8192),
    Case(128, 128, 1, 4096),
    Case(64, 128, 2, 8192),
    Case(1, 16, 512, 32_768),
]


class Caches:
    """The same random tokens in both forms, and page tables that walk through them."""

    def __init__(self) -> None:
        self.pool = Pool(64 * 32_768)
        self.fp8 = torch.cat([quantize_rows(part) for part in self.pool.cache.split(2048)])
        self.cos_sin = rope_table()

    def ways(self, case: Case) -> dict[str, list[Call]]:
        """bf16, fp8, and fp8 with every tile rotated; as many calls as leave the L2 behind."""
        q = torch.randn(case.batch * case.q_len, case.heads, 576, device="cuda").bfloat16()
        indptr = (torch.arange(case.batch + 1) * case.q_len).int().cuda()
        q_pos = torch.full((case.batch,), case.keys - case.q_len, dtype=torch.int32).cuda()
        shape = {"total_q": len(q), "num_heads": case.heads, "max_q_len": case.q_len}
        ways: dict[str, list[Call]] = {"bf16": [], "fp8": [], "rotated": []}

        def add(name: str, attend: Any, cache: torch.Tensor, pages: torch.Tensor) -> None:
            table = whole_pages(pages, case.keys, rotated=name == "rotated")
            cluster = 0 if name == "bf16" else 1
            plan = plan_attention(table, indptr, q_pos, cluster=cluster, **shape)
            options = {"scale": SCALE, "max_q_len": case.q_len, "cos_sin": self.cos_sin}
            ways[name].append(lambda: attend(q, cache, table, indptr, q_pos, plan=plan, **options))

        for _ in range(case.calls):
            pages = self.pool.pages(case.batch, case.keys // 64)
            add("bf16", mla_attention, self.pool.cache, pages)
            add("fp8", mla_attention_fp8, self.fp8, pages)
            add("rotated", mla_attention_fp8, self.fp8, pages)
        return ways


def rows_of(case: Case, samples: dict[str, list[float]]) -> list[dict[str, Any]]:
    us = {name: statistics.median(values) for name, values in samples.items()}
    common = {"case": case.name, "bar": None, "samples": None, "rival": None, "rival_value": None}
    rate = case.batch * case.keys * FP8_ROW_BYTES / us["fp8"] / 1e3
    time = {
        "bar_id": "mla.fp8",
        "metric": f"time in a CUDA graph, {FP8_ROW_BYTES} bytes a token",
        "value": round(us["fp8"], 2),
        "unit": "us",
        "rival": f"our bf16 kernel, {ROW_BYTES} bytes a token",
        "rival_value": round(us["bf16"], 2),
        "samples": [round(sample, 2) for sample in samples["fp8"]],
    }
    turned = {
        "bar_id": "mla.fp8",
        "metric": "time with every tile rotated over delta 0",
        "value": round(us["rotated"] / us["fp8"], 3),
        "unit": "",
    }
    bandwidth = {
        "bar_id": "mla.fp8",
        "metric": "bandwidth of keys",
        "value": round(rate, 1),
        "unit": "GB/s",
    }
    print(
        f"{case.name:<52}{us['fp8']:9.1f} us  x{us['fp8'] / us['bf16']:.3f} of bf16  "
        f"{rate:6.0f} GB/s {case.flop / us['fp8'] / 1e6:5.0f} TFLOP/s  "
        f"rotated x{us['rotated'] / us['fp8']:.3f}",
        flush=True,
    )
    return [common | row for row in (time, turned, bandwidth)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="results file to write")
    parser.add_argument("--rounds", type=int, default=11, help="replays of each graph")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    caches = Caches()
    rows = []
    for case in CASES:
        graphs = {name: capture(calls) for name, calls in caches.ways(case).items()}
        replays = {name: graph.replay for name, graph in graphs.items()}
        samples = in_turn(replays, case.calls, rounds=arguments.rounds, settle=SETTLE)
        rows += rows_of(case, samples)
    command = "python benches/kernels/mla/fp8.py --out FILE"
    gpu_report.save(arguments.out, command, rows)


if __name__ == "__main__":
    main()
