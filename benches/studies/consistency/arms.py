"""The spans that content allows -> the spans that each way of reusing takes over.

Must not know models or prompts. Every arm begins with the same spans, found without the rules about
sinks, and differs in what it cuts from them; so arms differ in the rule alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from irminsul.integrations.transformers import Span
from irminsul.integrations.transformers.mentions import relink, without
from torch import Tensor

SINK = 32
MIN_SPAN = 32

Spans = list[Span]
Rule = Callable[[Spans, int], Spans]


@dataclass(frozen=True)
class Arm:
    """One way of reusing.

    Parameters
    ----------
    rules
        Applied in order to the spans behind the exact prefix.
    select
        Part of the reused rows that are computed again, those that deviate most in `layer`; after
        CacheBlend (arXiv 2405.16444).
    relink
        Most of the reused rows that are computed again for what stands before them now, see
        `PICEngine`.
    """

    name: str
    rules: tuple[Rule, ...]
    select: float = 0.0
    layer: int = 1
    relink: float = 0.0

    def spans(self, found: Sequence[Span], prompt: Sequence[int]) -> Spans:
        """Cut what the arm does not take over; the exact prefix stays."""
        exact = prefix(found)
        kept = list(found[len(exact) :])
        for rule in self.rules:
            kept = rule(kept, len(prompt))
        return [*exact, *relink(np.array(prompt, dtype=np.uint32), exact, kept, self.relink)]


def prefix(spans: Sequence[Span]) -> Spans:
    """Spans at the start that are in place: rows of the same tokens at the same positions."""
    exact: Spans = []
    for span in spans:
        if span.rotation or span.target != (exact[-1].end if exact else 0):
            break
        if span.pieces[0].start != span.target:
            break
        exact.append(span)
    return exact


def carve_out(spans: Spans, _: int) -> Spans:
    """The first 32 positions of a prompt are computed."""
    return without(spans, [(0, SINK)])


def sources_stay(spans: Spans, _: int) -> Spans:
    """Rows that were computed within the first 32 positions are not moved."""
    kept: Spans = []
    for span in spans:
        source = span.target - span.rotation
        first = span.target if span.rotation == 0 else span.target + max(0, SINK - source)
        if (part := span.cut(first, span.end)) is not None:
            kept.append(part)
    return kept


def long_enough(spans: Spans, _: int) -> Spans:
    """Spans that the other rules left too short are computed."""
    return [span for span in spans if span.length >= MIN_SPAN]


def head(count: int) -> Rule:
    """Compute the first `count` rows of every span again, as EPIC does (arXiv 2410.15332)."""

    def rule(spans: Spans, _: int) -> Spans:
        parts = (span.cut(span.target + count, span.end) for span in spans)
        return [part for part in parts if part is not None]

    return rule


def tail(count: int) -> Rule:
    """Compute the last `count` rows of every span again."""

    def rule(spans: Spans, _: int) -> Spans:
        parts = (span.cut(span.target, span.end - count) for span in spans)
        return [part for part in parts if part is not None]

    return rule


def unturned(spans: Spans, _: int) -> Spans:
    """Leave keys as they were at their old position: naive reuse."""
    return [replace(span, rotation=0) for span in spans]


def most_deviating(spans: Sequence[Span], deviation: Tensor, part: float) -> list[tuple[int, int]]:
    """Prompt positions to compute again, as ranges.

    Parameters
    ----------
    deviation : Tensor, [prompt_len]
        How far each row that would be reused lies from the computed one.
    part : float
        Share of the spans' rows that is wanted.
    """
    moved = spans[len(prefix(spans)) :]
    reused = torch.zeros(len(deviation), dtype=torch.bool)
    for span in moved:
        reused[span.target : span.end] = True
    count = round(part * int(reused.sum()))
    if count == 0:
        return []
    ranked = torch.where(reused, deviation.cpu().float(), -1.0)
    chosen = ranked.topk(count).indices.sort().values.tolist()
    ranges: list[tuple[int, int]] = []
    for position in chosen:
        if ranges and ranges[-1][1] == position:
            ranges[-1] = (ranges[-1][0], position + 1)
        else:
            ranges.append((position, position + 1))
    return ranges


_RULES = (carve_out, sources_stay, long_enough)

IRMINSUL = Arm("irminsul", _RULES)
REPAIRS = (
    Arm("relink 1 %", _RULES, relink=0.01),
    Arm("relink 2 %", _RULES, relink=0.02),
    Arm("relink 5 %", _RULES, relink=0.05),
    Arm("relink 10 %", _RULES, relink=0.10),
    Arm("layer 2, 2 %", _RULES, select=0.02, layer=2),
    Arm("layer 2, 5 %", _RULES, select=0.05, layer=2),
    Arm("layer 2, 15 %", _RULES, select=0.15, layer=2),
    Arm("layer 3, 5 %", _RULES, select=0.05, layer=3),
    Arm("head 64", (*_RULES, head(64))),
    Arm("head 128", (*_RULES, head(128))),
    Arm("tail 16", (*_RULES, tail(16))),
    Arm("tail 32", (*_RULES, tail(32))),
)
"""Ways to bring back links that reuse has lost; asked of a reader, see the README."""

ARMS = (
    Arm("naive", (*_RULES, unturned)),
    IRMINSUL,
    Arm("head 8", (*_RULES, head(8))),
    Arm("head 16", (*_RULES, head(16))),
    Arm("head 32", (*_RULES, head(32))),
    Arm("no carve-out", (sources_stay, long_enough)),
    Arm("sources move", (carve_out, long_enough)),
    Arm("select 5 %", _RULES, select=0.05),
    Arm("select 15 %", _RULES, select=0.15),
    Arm("select 30 %", _RULES, select=0.30),
)
