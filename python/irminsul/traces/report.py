"""Finished analyses -> plain data for machines and the numbers that every presentation shows.

Must not know terminals, HTML or figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from irminsul.traces.analysis import Analyzer, Cause, Totals
from irminsul.traces.causes import ADVICE, excerpts
from irminsul.traces.estimate import MODELS, Model, prefill_flops
from irminsul.traces.reader import Malformed

__all__ = ["FileReport", "Settings", "as_json", "causes_by_cost", "percent", "totals_row"]


@dataclass(frozen=True, slots=True)
class Settings:
    """What an analysis assumed.

    Attributes
    ----------
    capacity : int or None
        Tokens of the finite caches.
    model : str
        A name of `irminsul.traces.estimate.MODELS`.
    teraflops : float
        Sustained prefill speed for the estimate of seconds, in 10**12 operations a second.
    clean : callable
        Applied to excerpts; masks secrets.
    """

    capacity: int | None
    model: str
    teraflops: float
    clean: Callable[[str], str]

    @property
    def costs(self) -> Model:
        """The model's costs."""
        return MODELS[self.model]


@dataclass(slots=True)
class FileReport:
    """The analysis of one log."""

    name: str
    analyzer: Analyzer
    malformed_count: int = 0
    malformed: Sequence[Malformed] = field(default_factory=list)


def percent(part: int, whole: int) -> float:
    """Return a share in percent, 0 of nothing."""
    return round(100 * part / whole, 2) if whole else 0.0


def totals_row(sums: Totals, settings: Settings) -> dict[str, Any]:
    """Return sums, shares and estimates as plain numbers; finite ones only with a capacity."""
    served = sums.prefix + sums.reused
    flops = [
        prefill_flops(settings.costs, computed, attention)
        for computed, attention in (
            (sums.prompt - sums.prefix, sums.attention_prefix),
            (sums.computed, sums.attention),
        )
    ]
    row: dict[str, Any] = {
        "calls": sums.calls,
        "prompt_tokens": sums.prompt,
        "prefix_tokens": sums.prefix,
        "shifted_tokens": sums.reused,
        "computed_tokens": sums.computed,
        "prefix_percent": percent(sums.prefix, sums.prompt),
        "irminsul_percent": percent(served, sums.prompt),
        "upper_bound_percent": percent(sums.bound, sums.prompt),
        "spans_per_prompt": round(sums.spans / sums.calls, 2) if sums.calls else 0.0,
        "saved_pflop": round((flops[0] - flops[1]) / 1e15, 3),
        "saved_seconds": round((flops[0] - flops[1]) / (settings.teraflops * 1e12), 2),
    }
    if settings.capacity:
        finite = sums.finite_irminsul_prefix + sums.finite_reused
        row["prefix_percent_at_capacity"] = percent(sums.finite_prefix, sums.prompt)
        row["irminsul_percent_at_capacity"] = percent(finite, sums.prompt)
    return row


def causes_by_cost(causes: dict[str, Cause]) -> list[tuple[str, Cause]]:
    """Return the causes of prefix breaks, the costliest first."""
    return sorted(causes.items(), key=lambda item: (-item[1].lost_tokens, item[0]))


def as_json(files: Sequence[FileReport], settings: Settings) -> dict[str, Any]:
    """Return the whole report as JSON-ready data."""
    total = Totals()
    for file in files:
        total.add(file.analyzer.total)
    return {
        "capacity_tokens": settings.capacity,
        "model": settings.model,
        "teraflops": settings.teraflops,
        "total": totals_row(total, settings),
        "files": [_file(file, settings) for file in files],
    }


def _file(file: FileReport, settings: Settings) -> dict[str, Any]:
    analyzer = file.analyzer
    return {
        "file": file.name,
        "malformed_lines": file.malformed_count,
        "first_malformed": [{"line": m.line, "reason": m.reason} for m in file.malformed],
        "total": totals_row(analyzer.total, settings),
        "turns": [
            {"turn": turn, **totals_row(sums, settings)}
            for turn, sums in sorted(analyzer.turns.items())
        ],
        "sessions": [
            {"session": session, **totals_row(sums, settings)}
            for session, sums in analyzer.sessions.items()
        ],
        "causes": [
            _cause(kind, cause, settings) for kind, cause in causes_by_cost(analyzer.causes)
        ],
    }


def _cause(kind: str, cause: Cause, settings: Settings) -> dict[str, Any]:
    row: dict[str, Any] = {
        "cause": kind,
        "count": cause.count,
        "lost_tokens": cause.lost_tokens,
        "advice": ADVICE[kind],
    }
    if cause.example is not None:
        before, after = excerpts(cause.example, settings.clean)
        row |= {
            "session": cause.example.session,
            "turn": cause.example.turn,
            "before": before,
            "after": after,
        }
    return row
