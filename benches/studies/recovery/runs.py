"""Request logs -> how long the runs are that plans move by one distance, in tokens.

Attention kernels turn queries once for a run and keys in short ones: docs/adr/010.

    python benches/studies/recovery/runs.py TRACES
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import results_file
from irminsul import Reuse, ReusePlan
from irminsul.tokenizer import load_tokenizer
from irminsul.traces.corpus import load_corpus
from irminsul.traces.replay import IrminsulCache

HERE = Path(__file__).resolve().parent
CALLS = 600
LENGTHS = (320, 512, 1024)


def runs_of(plan: ReusePlan) -> Iterator[int]:
    """Tokens of each run of adjacent spans that are moved by one distance other than 0."""
    length, delta, end = 0, 0, -1
    for segment in plan.segments:
        if isinstance(segment, Reuse) and segment.delta == delta and segment.target == end:
            length += segment.length
        else:
            if delta:
                yield length
            length, delta = 0, 0
            if isinstance(segment, Reuse):
                length, delta = segment.length, segment.delta
        if isinstance(segment, Reuse):
            end = segment.target + segment.length
    if delta:
        yield length


class Recorder(IrminsulCache):
    """A cache that keeps the lengths of its plans' runs."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths: list[int] = []

    def _touch_donors(self, plan: ReusePlan) -> None:
        self.lengths += runs_of(plan)
        super()._touch_donors(plan)


def measure(trace: Path, encoder: Any, cache: Path) -> Iterator[dict[str, Any]]:
    """Rows of one log: the run that the median token stands in, and shares of long runs."""
    recorder = Recorder()
    for call, tokenized in enumerate(load_corpus(trace, encoder, cache)):
        if call == CALLS:
            break
        recorder.serve(tokenized.tokens)
    lengths = sorted(recorder.lengths)
    total, before, median = sum(lengths), 0, 0
    for length in lengths:
        before += length
        if 2 * before >= total:
            median = length
            break
    case = trace.name.removesuffix(".jsonl.zst")
    row = {"bar_id": "mla.runs", "case": case, "samples": len(lengths)}
    yield row | {"metric": "tokens reused at other positions", "value": total, "unit": "tokens"}
    yield row | {"metric": "run of the median token", "value": median, "unit": "tokens"}
    for least in LENGTHS:
        share = sum(length for length in lengths if length >= least) / max(total, 1)
        metric = f"share in runs of {least} and more"
        yield row | {"metric": metric, "value": round(share, 3), "unit": ""}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", type=Path, help="folder of *.jsonl.zst request logs")
    parser.add_argument("--cache", type=Path, default=HERE.parents[2] / "build" / "tokens")
    arguments = parser.parse_args()
    encoder, rows = load_tokenizer(), []
    for trace in sorted(arguments.traces.glob("*.jsonl.zst")):
        for row in measure(trace, encoder, arguments.cache):
            rows.append(row)
            print(f"{row['case']:32} {row['metric']:34} {row['value']}", flush=True)
    head = {
        "machine": f"{platform.machine()}, CPython {platform.python_version()}, one core",
        "command": "python benches/studies/recovery/runs.py TRACES",
    }
    path = HERE / "results" / "runs.json"
    path.write_text(results_file.text(head, results_file.filled(rows)))


if __name__ == "__main__":
    main()
