"""Recorded agent traffic -> results/recovery.json: prefix cache against irminsul against the bound.

Usage: python benches/studies/recovery/run.py TRACES [--cache DIR] [--only CASE ...]
"""

from __future__ import annotations

import argparse
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cases
import numpy as np
import prompts
from irminsul import Policy
from irminsul.tokenizer import Encoder, load_tokenizer
from irminsul.traces.analysis import Analyzer
from irminsul.traces.corpus import load_corpus
from irminsul.traces.reader import read_calls
from irminsul.traces.replay import IrminsulCache

sys.path.insert(1, str(Path(__file__).resolve().parents[2]))
import bars
import results_file

HERE = Path(__file__).parent
ROOT = HERE.parents[2]

Row = dict[str, Any]

RUN_CALLS = 600  # of each set, whose runs are counted
RUN_LENGTHS = (320, 512, 1024)

# Percent of prompt tokens, prefix and reuse together, that one default parameter set must reach.
BARS = {
    "variant_early_variation": 93.0,
    "variant_tool_reorder_turn": 95.0,
    "variant_history_compaction": 91.0,
    "variant_rag_shuffle": 82.0,
    "variant_tool_reorder": 96.3,
    "rag_musique": 33.0,
}

ABLATIONS = {
    "default": Policy(),
    "without windows": Policy(windows=False),
    "min_span 16": Policy(min_span=16),
    "min_span 64": Policy(min_span=64),
    "min_span 128": Policy(min_span=128),
    "max_segments 16": Policy(max_segments=16),
    "max_depth 8": Policy(max_depth=8),
    "recompute_head 16": Policy(recompute_head=16),
}


class Study:
    """The cases, each a stream of result rows."""

    def __init__(self, traces: Path, encoder: Encoder, cache: Path) -> None:
        self._traces = traces
        self._encoder = encoder
        self._cache = cache

    def recovery(self) -> Iterator[Row]:
        for name, corpus in self._sets():
            result = cases.recovery(corpus)
            bar = f">= {BARS[name]}" if name in BARS else None
            yield row(
                "matching.1",
                name,
                "prefix_and_reuse",
                result.irminsul,
                bar=bar,
                rival=("prefix cache", result.prefix),
                samples=result.prompts,
            )
            samples = result.prompts
            spans = result.spans_per_prompt
            yield row("matching.1", name, "upper_bound", result.bound, samples=samples)
            yield row("matching.1", name, "spans", spans, unit="per prompt", samples=samples)
            yield row("matching.1", name, "largest_depth", result.depth, unit="", samples=samples)

    def finite(self) -> Iterator[Row]:
        for name, corpus in self._sets():
            for kind, capacity in cases.capacities(corpus).items():
                result = cases.finite(corpus, capacity)
                yield row(
                    "matching.2",
                    f"{name}, a tenth of the {kind}: {capacity} tokens",
                    "prefix_and_reuse",
                    result.irminsul,
                    bar=f">= {result.prefix}",
                    rival=("prefix cache", result.prefix),
                    samples=len(corpus),
                )

    def steady(self) -> Iterator[Row]:
        documents = [self._encoder.encode(text) for text in prompts.passages(self._traces, 14)]
        head = self._encoder.encode("Answer from the passages.\n\n")
        tail = self._encoder.encode("\n\nQuestion: who wrote the play?\nAnswer:")
        length = len(head) + len(tail) + sum(map(len, documents))
        batches = cases.shuffled_batches(documents, head, tail, batches=10, size=8, seed=0)
        result = cases.steady(batches, capacity=3 * length)
        first, last = result.reused_percent[0], result.reused_percent[-1]
        case = f"14 documents, 10 batches of 8 shuffles, capacity {result.capacity} tokens"
        yield row("matching.3", case, "reuse_kept", 100 * last / first, bar=">= 90", samples=10)
        for batch, (reused, prefix, stored) in enumerate(
            zip(result.reused_percent, result.prefix_percent, result.stored, strict=True), 1
        ):
            rival = ("prefix cache", prefix)
            yield row("matching.3", f"batch {batch}", "reused", reused, rival=rival, samples=8)
            bar = f"<= {2 * result.capacity}"
            yield row("matching.3", f"batch {batch}", "stored", stored, unit="tokens", bar=bar)

    def edits(self) -> Iterator[Row]:
        text = prompts.long_text(self._traces, self._encoder, 60_000)
        first, *later = prompts.nonces(21, seed=0)
        before = prompts.with_nonce(text, self._encoder, first)
        outcomes = [
            cases.edited(before, prompts.with_nonce(text, self._encoder, nonce)) for nonce in later
        ]
        worst = min((o.prefix + o.reused) / o.prompt for o in outcomes)
        prefix = max(o.prefix / o.prompt for o in outcomes)
        yield row(
            "matching.4",
            f"fresh nonce of 5 hex digits in {len(before)} tokens, worst of 20",
            "prefix_and_reuse",
            100 * worst,
            bar=">= 95",
            rival=("prefix cache", round(100 * prefix, 2)),
            samples=20,
        )
        middle = len(before) // 2
        for cut in (1, 2, 5, 17, 64, 100, 333, 1000, 2000, 5000):
            outcome = cases.edited(before, np.delete(before, np.s_[middle : middle + cut]))
            share = 100 * outcome.reused / (outcome.prompt - middle)
            case = f"{cut} tokens deleted in the middle"
            yield row("matching.4", case, "tail_reused", share, bar=">= 95", rival=("prefix", 0.0))

    def ablation(self) -> Iterator[Row]:
        every: dict[str, list[float]] = {label: [] for label in ABLATIONS}
        for name, corpus in self._sets():
            for label, policy in ABLATIONS.items() if name in BARS else ():
                outcomes = cases.replay(corpus, IrminsulCache(policy=policy))
                case, served = f"{name}, {label}", cases.served_percent(outcomes)
                spans = cases.spans_per_prompt(outcomes)
                yield row("matching.1", case, "prefix_and_reuse", served)
                yield row("matching.1", case, "spans_per_prompt", spans, unit="spans")
                every[label].append(spans)
        for label, found in every.items():
            mean = statistics.mean(found)
            yield row("matching.1", f"mean, {label}", "spans_per_prompt", mean, unit="spans")

    def runs(self) -> Iterator[Row]:
        """How long the runs are that plans move by one distance: docs/adr/010."""
        for name, corpus in self._sets():
            lengths = cases.moved_runs(corpus[:RUN_CALLS])
            total, samples = sum(lengths), len(lengths)
            median = lengths[int(np.searchsorted(np.cumsum(lengths), total / 2))]
            yield row("mla.runs", name, "tokens_moved", total, unit="tokens", samples=samples)
            yield row("mla.runs", name, "median_run", median, unit="tokens", samples=samples)
            for least in RUN_LENGTHS:
                share = 100 * sum(length for length in lengths if length >= least) / total
                yield row("mla.runs", name, f"in_runs_of_{least}", share, samples=samples)

    def analyze(self) -> Iterator[Row]:
        """Time the analysis of the largest set, its tokens taken from the cache."""
        source = self._traces / f"tau_airline{prompts.SUFFIX}"
        corpus = load_corpus(source, self._encoder, self._cache)
        analyzer = Analyzer(capacity=100_000)
        start = time.process_time()
        for call, tokenized in zip(read_calls(source), corpus, strict=True):
            analyzer.feed(call, tokenized)
        seconds = time.process_time() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        case = f"tau_airline, {analyzer.total.prompt} tokens"
        yield row("matching.5", case, "analysis_time", seconds, unit="s of one core", bar="<= 30")
        yield row("matching.5", case, "peak_memory", peak, unit="GB", bar="<= 1.5")

    def _sets(self) -> Iterator[tuple[str, list[prompts.Tokens]]]:
        for name in prompts.sets(self._traces):
            yield name, prompts.load(self._traces, name, self._encoder, self._cache)


def row(
    bar_id: str,
    case: str,
    metric: str,
    value: float,
    *,
    unit: str = "%",
    bar: str | None = None,
    rival: tuple[str, float] | None = None,
    samples: int = 1,
) -> Row:
    name, rival_value = rival or (None, None)
    return {
        "bar_id": bar_id,
        "case": case,
        "metric": metric,
        "value": round(value, 2),
        "unit": unit,
        "rival": name,
        "rival_value": rival_value,
        "bar": bar,
        "samples": samples,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", type=Path, help="folder of *.jsonl.zst request logs")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "tokens")
    names = ["recovery", "finite", "steady", "edits", "runs", "analyze", "ablation"]
    parser.add_argument("--only", nargs="+", choices=names, default=names[:-1])
    arguments = parser.parse_args()
    study = Study(arguments.traces, load_tokenizer(), arguments.cache)
    failed = 0
    for name in arguments.only:
        case: Callable[[], Iterator[Row]] = getattr(study, name)
        rows = []
        for result in case():
            rows.append(result)
            missed = bars.holds(result) is False
            failed += missed
            mark = "  BELOW THE BAR" if missed else ""
            text = f"{result['case']:60} {result['metric']:18} {result['value']:12}"
            print(f"{text} {result['bar'] or '':10}{mark}", flush=True)
        write(name, rows)
    return min(failed, 1)


def write(name: str, rows: list[Row]) -> None:
    machine = f"{platform.machine()}, CPython {platform.python_version()}, one core"
    command = f"python benches/studies/recovery/run.py TRACES --only {name}"
    path = HERE / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    head = {"machine": machine, "command": command}
    path.write_text(results_file.text(head, results_file.filled(rows)))


if __name__ == "__main__":
    sys.exit(main())
