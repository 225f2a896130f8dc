"""Samples -> counts that can be added up over several runs, and result rows with intervals.

Must not know models or how samples came about.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from measure import FULL, NOISE, Sample

Row = dict[str, Any]
Z = 1.96
ORACLES = ("select", "layer")
"""Arms that know the true rows, which a server would have to compute."""


@dataclass
class Cell:
    """Sums over the samples of one scenario, kind and arm."""

    samples: int = 0
    correct: int = 0
    lost: int = 0
    won: int = 0
    diverged: int = 0
    kl: float = 0.0
    computed: float = 0.0

    def add(self, sample: Sample) -> None:
        """Count one more sample; `lost` and `won` compare it with full prefill."""
        self.samples += 1
        self.correct += sample.correct
        self.lost += sample.full_correct and not sample.correct
        self.won += sample.correct and not sample.full_correct
        self.diverged += sample.diverged is not None
        self.kl += sample.kl
        self.computed += sample.computed


class Tally:
    """All cells, and which trials of each scenario they hold."""

    def __init__(self) -> None:
        self.cells: dict[tuple[str, str, str], Cell] = {}
        self.blocks: dict[str, list[tuple[int, int]]] = {}

    @property
    def trials(self) -> dict[str, int]:
        """How many trials of each scenario are counted."""
        return {name: sum(b - a for a, b in done) for name, done in self.blocks.items()}

    def has(self, scenario: str, trial: int) -> bool:
        """Whether a trial is counted."""
        return any(first <= trial < end for first, end in self.blocks.get(scenario, []))

    def add(self, scenario: str, first: int, end: int, samples: Iterable[Sample]) -> None:
        """Count the samples of trials `first` to `end`."""
        for sample in samples:
            key = (scenario, sample.kind, sample.arm)
            self.cells.setdefault(key, Cell()).add(sample)
        self.blocks.setdefault(scenario, []).append((first, end))

    def write(self, path: Path) -> None:
        """Write everything as JSON, whole or not at all."""
        cells = [[*key, asdict(cell)] for key, cell in self.cells.items()]
        new = path.with_suffix(".new")
        new.write_text(json.dumps({"blocks": self.blocks, "cells": cells}))
        new.replace(path)

    @classmethod
    def read(cls, path: Path) -> Tally:
        """Read what `write` wrote; empty when there is none."""
        tally = cls()
        if path.exists():
            data = json.loads(path.read_text())
            tally.blocks = {k: [(a, b) for a, b in v] for k, v in data["blocks"].items()}
            tally.cells = {tuple(key): Cell(**cell) for *key, cell in data["cells"]}
        return tally

    def rows(self) -> Iterable[Row]:
        """Result rows: accuracy, KL, divergence and cost of every cell, then the bars."""
        for (scenario, kind, arm), cell in self.cells.items():
            yield _cell_row(f"{scenario}, {kind}, {arm}", cell)
        yield from self._single_hop()
        yield from self._against_naive()
        yield from self._two_hop()

    def _single_hop(self) -> Iterable[Row]:
        """Bar 1: single-hop recall within what full prefill differs from itself."""
        for scenario in self.trials:
            cell = self.cells.get((scenario, "single", "irminsul"))
            if cell is None:
                continue
            noise = [self.cells[scenario, "single", name] for name in (FULL, *NOISE)]
            floor = min(interval(c.correct, c.samples)[0] for c in noise)
            yield row(
                "quality.1",
                f"{scenario}, single, irminsul",
                "accuracy_against_noise_floor",
                100 * cell.correct / cell.samples,
                "%",
                cell.samples,
                rival=(FULL, 100 * noise[0].correct / noise[0].samples),
                bar=f">= {100 * floor:.2f}",
            )

    def _against_naive(self) -> Iterable[Row]:
        """Bar 1: KL at least 22 % below naive reuse (arXiv 2605.05696)."""
        for (scenario, kind, arm), cell in self.cells.items():
            naive = self.cells.get((scenario, kind, "naive"))
            if naive is None or not (arm == "irminsul" or arm.startswith("relink")):
                continue
            ratio = (cell.kl / cell.samples) / (naive.kl / naive.samples) if naive.kl else 1.0
            less = 100 * (1 - ratio)
            yield row(
                "quality.1",
                f"{scenario}, {kind}, {arm}",
                "kl_below_naive",
                less,
                "%",
                cell.samples,
                rival=("naive", naive.kl / naive.samples),
                bar=">= 22",
            )

    def _two_hop(self) -> Iterable[Row]:
        """Bar 2: the cheapest setting within 2 points of full prefill, and its price."""
        for scenario in self.trials:
            full = self.cells[scenario, "hop2", FULL]
            arms = {a: c for (s, k, a), c in self.cells.items() if (s, k) == (scenario, "hop2")}
            reuse = {a: c for a, c in arms.items() if a not in (FULL, *NOISE)}
            reuse = {a: c for a, c in reuse.items() if not a.startswith(ORACLES)}
            close = {a: c for a, c in reuse.items() if 100 * (c.lost - c.won) <= 2 * c.samples}
            if not close:
                case, share, n = f"{scenario}, hop2, no arm is within 2 points", 100.0, full.samples
            else:
                name = min(close, key=lambda a: close[a].computed / close[a].samples)
                case = f"{scenario}, hop2, cheapest within 2 points: {name}"
                n = close[name].samples
                share = 100 * close[name].computed / n
            yield row("quality.2", case, "computed", share, "%", n, bar="< 50")


def _cell_row(case: str, cell: Cell) -> Row:
    """Accuracy as the value; what else is known of the cell beside it.

    Points lost against full prefill come as [value, low, high].
    """
    n = cell.samples
    lost, spread = (cell.lost - cell.won) / n, math.sqrt((cell.lost + cell.won) / n / n)
    low, high = interval(cell.correct, n)
    limits = (100 * low, 100 * high)
    return {
        **row(None, case, "accuracy", 100 * cell.correct / n, "%", n, limits),
        "points_lost": [_short(100 * (lost + k * Z * spread)) for k in (0, -1, 1)],
        "kl_nats": _short(cell.kl / n),
        "diverged": _short(100 * cell.diverged / n),
        "computed": _short(100 * cell.computed / n),
    }


def interval(hits: int, samples: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    if samples == 0:
        return 0.0, 1.0
    share, z2 = hits / samples, Z * Z
    middle = (share + z2 / (2 * samples)) / (1 + z2 / samples)
    half = Z * math.sqrt(share * (1 - share) / samples + z2 / (4 * samples**2)) / (1 + z2 / samples)
    return max(0.0, middle - half), min(1.0, middle + half)


def row(
    bar_id: str | None,
    case: str,
    metric: str,
    value: float,
    unit: str,
    samples: int,
    limits: tuple[float, float] | None = None,
    *,
    rival: tuple[str, float] | None = None,
    bar: str | None = None,
) -> Row:
    """One row of a results file; `low` and `high` bound its 95 % interval."""
    return {
        "bar_id": bar_id or "quality",
        "case": case,
        "metric": metric,
        "value": _short(value),
        "low": None if limits is None else _short(limits[0]),
        "high": None if limits is None else _short(limits[1]),
        "unit": unit,
        "rival": rival and rival[0],
        "rival_value": rival and _short(rival[1]),
        "bar": bar,
        "samples": samples,
    }


def _short(value: float) -> float:
    short = float(f"{value:.4g}")
    return int(short) if short.is_integer() else short
