"""Times of mla_attention on one GPU -> a JSON file of results.

Every size runs in one process beside FlashMLA (package sglang-kernel) and FlashInfer's MLA,
where they can be imported, as replays of CUDA graphs over keys that rotate through more than the
L2, ours and theirs in turn. All schedules are made beforehand, as an engine does for all layers.

    python benches/kernels/mla/run.py --out benches/kernels/mla/results/h200.json
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
from graphs import SETTLE, Call, capture, in_turn, timed
from irminsul.attention import TileTable, mla_attention, plan_attention
from rivals import flash_infer_call, flash_mla_call, relocation_call
from workloads import SCALE, TABLE, Case, Pool, cut_spans, rope_table, whole_pages

PREFILL = [Case(1, 16, 512, 32_768), Case(4, 16, 2048, 16_384)]
STREAMING = [Case(64, 16, 1, 32_768), Case(8, 16, 1, 131_072)]
SINGLE = {Case(1, 16, 1, 32_768), Case(1, 16, 1, 131_072)}
# Of the tokens that traffic reuses at other positions, 46 % stand in runs this long as recorded,
# 80 % with sets that are rewritten: docs/adr/010.
RUN = 8
CUT = [Case(64, 16, 1, 8192), Case(64, 128, 1, 8192)]


class Bench:
    """The pool that all cases share, and the rows of the report."""

    def __init__(self, rounds: int) -> None:
        self.pool = Pool()
        self.cos_sin = rope_table()
        self.rounds = rounds
        self.rows: list[dict[str, Any]] = []
        self.read_bandwidth = self.measure_read()

    def measure_read(self) -> float:
        """GB/s of a reduction over 2 GiB: what this GPU reads at most."""
        words = self.pool.cache.view(torch.int32).flatten()[: 1 << 29].view(4096, -1)
        graph = capture([lambda: torch.amax(words, dim=1)] * 4)
        times = timed(graph.replay, 4, rounds=9, warmup=2)
        return words.numel() * 4 / statistics.median(times) / 1e3

    def measure_product(self) -> float:
        """TFLOP/s of torch's bf16 product of 8192 x 8192 matrices, for comparison."""
        a, b = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
        graph = capture([lambda: a @ b] * 4)
        times = timed(graph.replay, 4, rounds=9, warmup=2)
        return 2.0 * 8192**3 / statistics.median(times) / 1e6

    def add(
        self, bar_id: str, case: str, metric: str, value: float, unit: str, **more: Any
    ) -> None:
        row = {"bar_id": bar_id, "case": case, "metric": metric, "value": round(value, 3)}
        row |= {"unit": unit, "rival": None, "rival_value": None, "bar": None, "samples": None}
        self.rows.append(row | more)

    def call(self, case: Case, q: torch.Tensor, table: TileTable) -> Call:
        indptr = (torch.arange(case.batch + 1) * case.q_len).int().cuda()
        q_pos = torch.full((case.batch,), case.keys - case.q_len, dtype=torch.int32).cuda()
        shape = {"total_q": case.batch * case.q_len, "num_heads": case.heads}
        plan = plan_attention(table, indptr, q_pos, max_q_len=case.q_len, **shape)
        options = {"scale": SCALE, "max_q_len": case.q_len, "cos_sin": self.cos_sin, "plan": plan}
        return lambda: mla_attention(q, self.pool.cache, table, indptr, q_pos, **options)

    def queries(self, case: Case) -> torch.Tensor:
        return torch.randn(case.batch * case.q_len, case.heads, 576, device="cuda").bfloat16()

    def time(self, case: Case, ways: dict[str, list[Call]]) -> dict[str, float]:
        graphs = {name: capture(calls) for name, calls in ways.items()}
        replays = {name: graph.replay for name, graph in graphs.items()}
        self.samples = in_turn(replays, case.calls, rounds=self.rounds, settle=SETTLE)
        return {name: statistics.median(values) for name, values in self.samples.items()}

    def ratio(self, way: str, other: str) -> float:
        """Return the median of the rounds' ratios: two ways of one round meet one clock."""
        rounds = zip(self.samples[way], self.samples[other], strict=True)
        return statistics.median(a / b for a, b in rounds)

    def compare(self, case: Case) -> None:
        q = self.queries(case)
        pages = [self.pool.pages(case.batch, case.keys // 64) for _ in range(case.calls)]
        ways: dict[str, list[Call]] = {
            "ours": [self.call(case, q, whole_pages(p, case.keys, rotated=False)) for p in pages],
            "own": [self.call(case, q, whole_pages(p, case.keys, rotated=True)) for p in pages],
            "rotated": [
                self.call(case, q, whole_pages(p, case.keys, rotated=True, run=RUN)) for p in pages
            ],
        }
        flash = [flash_mla_call(case, q, self.pool.cache, p) for p in pages]
        if all(flash):
            ways["flash"] = flash  # type: ignore[assignment]
        infer = [flash_infer_call(case, q, self.pool.cache, p) for p in pages]
        if all(infer):
            ways["infer"] = infer  # type: ignore[assignment]
        moved = [relocation_call(case, self.pool.cache, p, self.cos_sin) for p in pages]
        ways["unfused"] = [pair for one in zip(moved, ways["ours"], strict=True) for pair in one]
        self.report(case, self.time(case, ways))

    def report(self, case: Case, us: dict[str, float]) -> None:
        flash = us.get("flash")
        kept = [round(value, 2) for value in self.samples["ours"]]
        single = case in SINGLE
        bar = "<= 0.80 of the rival" if single else "<= 1.00 of the rival"
        self.add(
            "mla.4" if single else "mla.1",
            case.name,
            "time in a CUDA graph, delta 0",
            us["ours"],
            "us",
            rival="FlashMLA (sglang-kernel 0.4.5)",
            rival_value=flash and round(flash, 3),
            bar=bar,
            samples=kept,
        )
        if infer := us.get("infer"):
            self.add(
                "mla.flashinfer",
                case.name,
                "time in a CUDA graph, delta 0",
                us["ours"],
                "us",
                rival="FlashInfer 0.6.14, MLA, fa3",
                rival_value=round(infer, 3),
            )
        rate = case.bytes / us["ours"] / 1e3
        share = rate / self.read_bandwidth
        turned, own = self.ratio("rotated", "ours"), self.ratio("own", "ours")
        if case in PREFILL:
            self.add(
                "mla.2", case.name, "rate", case.flop / us["ours"] / 1e6, "TFLOP/s", bar=">= 690"
            )
        if case in STREAMING:
            self.add("mla.3", case.name, "share of read bandwidth", share, "", bar=">= 0.92")
        self.add("mla.rate", case.name, "rate", case.flop / us["ours"] / 1e6, "TFLOP/s")
        self.add("mla.bandwidth", case.name, "bandwidth", rate, "GB/s")
        self.add(
            "mla.5",
            case.name,
            f"time with every tile rotated, {RUN} in a run by one delta, over delta 0",
            turned,
            "",
            bar="<= 1.03",
        )
        self.add(
            "mla.own",
            case.name,
            "time with a delta of its own for every tile over delta 0",
            own,
            "",
        )
        self.add(
            "mla.7",
            case.name,
            "time with a delta of its own for every tile",
            us["own"],
            "us",
            rival="relocate_rows of one layer, then attention",
            rival_value=round(us["unfused"], 3),
            bar="< the rival",
        )
        print(
            f"{case.name:<52}{us['ours']:10.1f} us {case.flop / us['ours'] / 1e6:6.0f} TFLOP/s "
            f"{rate:6.0f} GB/s ({share:.3f}) | rotated x{turned:.3f}, own x{own:.3f} | "
            f"flash {flash or 0:.1f} x{us['ours'] / (flash or 1):.3f} | "
            f"infer {infer or 0:.1f} | unfused {us['unfused']:.1f}",
            flush=True,
        )

    def cut(self, case: Case) -> None:
        q = self.queries(case)
        plain, spans, ratio = [], [], 1.0
        for _ in range(case.calls):
            pages = self.pool.pages(case.batch, 3 * case.keys // 128)
            plain.append(self.call(case, q, whole_pages(pages, case.keys, rotated=False)))
            table, ratio = cut_spans(pages, case.keys)
            spans.append(self.call(case, q, table))
        us = self.time(case, {"ours": plain, "cut": spans})
        value = self.ratio("cut", "ours") / ratio
        self.add(
            "mla.6",
            case.name,
            f"time in cut spans over contiguous, over pages touched ({ratio:.2f})",
            value,
            "",
            bar="<= 1.10",
        )
        print(f"{case.name:<52} cut {us['cut']:.1f} us, whole {us['ours']:.1f} us: {value:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="results file to write")
    parser.add_argument("--rounds", type=int, default=15, help="replays of each graph")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    bench = Bench(arguments.rounds)
    print(f"{gpu_report.machine()}; reads {bench.read_bandwidth:.0f} GB/s", flush=True)
    bench.add("mla.read", "2 GiB", "read bandwidth (amax)", bench.read_bandwidth, "GB/s")
    product = bench.measure_product()
    bench.add("mla.product", "8192 x 8192 x 8192", "bf16 product (torch)", product, "TFLOP/s")
    for case in TABLE:
        bench.compare(case)
    for case in CUT:
        bench.cut(case)
    command = "python benches/kernels/mla/run.py --out FILE"
    gpu_report.save(arguments.out, command, bench.rows)


if __name__ == "__main__":
    main()
