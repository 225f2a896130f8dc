"""A prefill batch as SGLang built it -> the same batch with only its holes left to compute.

Knows the batch's fields and the spans; must not know how they were found, attention backends or
streams.

SGLang has given every token a slot and evicted what it needed to, so a plan made now names no row
that is about to be freed. `prepare` builds everything and may fail; `trim` assigns it and cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from irminsul.integrations.sglang.batch import numbers
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.spans import (
    BatchPlan,
    HostCopy,
    Share,
    Span,
    Window,
)
from irminsul.integrations.sglang.tree import provenance
from irminsul.integrations.sglang.tree.provenance import Moved

Placed = numbers.Placed
Divide = Callable[[list[Window], Placed], tuple[Placed, Any]]


def windows_of(batch: Any) -> list[Window]:
    """Return what each request of `batch` prefills in this round."""
    return [
        Window(request, prefix, prefix + length)
        for request, prefix, length in zip(
            batch.reqs, batch.prefix_lens, batch.extend_lens, strict=True
        )
    ]


class Trimmed(NamedTuple):
    """What `trim` will make of a batch."""

    plan: BatchPlan
    inputs: Tensor
    slots: Tensor
    computed: list[int]
    prefixes: list[int]
    histories: list[list[Moved]]


def prepare(batch: Any, windows: list[Window], divide: Divide | None = None) -> Trimmed:
    """Return `batch` without the reused tokens of `windows`; nothing is changed yet.

    Slots and ``seq_lens`` stay: the request owns its rows, moved or computed. For each request
    ``prefix_lens + extend_lens`` stays its end, so code that adds the two sees no difference.

    Parameters
    ----------
    divide
        Says which part of the spans is moved, and what is borrowed instead; None moves all.
    """
    holes = [window.holes() for window in windows]
    computed = [sum(end - start for start, end in found) for found in holes]
    made, host, lent = _made(batch, windows, holes, divide)
    plan = BatchPlan(
        holes=holes,
        positions=made.positions,
        source_slots=made.source_slots,
        target_slots=made.target_slots,
        deltas=made.deltas,
        shares=tuple(map(_share, windows, computed)),
        host=host,
        lent=lent,
    )
    prefixes = [window.end - count for window, count in zip(windows, computed, strict=True)]
    return Trimmed(
        plan, made.inputs, made.slots, computed, prefixes, [_history(w) for w in windows]
    )


def _made(
    batch: Any, windows: list[Window], holes: numbers.Holes, divide: Divide | None
) -> tuple[numbers.Numbers, HostCopy | None, Any]:
    """Return the numbers of a trimmed batch, what it copies from the host, and what it borrows."""
    slots, ids = batch.out_cache_loc, batch.prefill_input_ids_cpu
    if divide is None:
        made = numbers.written(windows, holes, slots, ids)
        if made is not None:
            return made, None, None
    found, gaps = numbers.placed(windows, slots)
    lent: Any = None
    if divide is not None:
        found, lent = divide(windows, found)
    moved = [pair for pair in found if not pair[0].on_host]
    made = numbers.made_of(windows, holes, moved, gaps, ids)
    return made, HostCopy.of([pair for pair in found if pair[0].on_host]), lent


def trim(batch: Any, windows: list[Window], trimmed: Trimmed, metrics: Metrics) -> None:
    """Leave `batch` only what has to be computed."""
    batch.prefill_input_ids_cpu = trimmed.inputs
    batch.out_cache_loc = trimmed.slots
    batch.extend_num_tokens = len(trimmed.inputs)
    batch.extend_lens = trimmed.computed
    batch.prefix_lens = trimmed.prefixes
    batch.irm_plan = trimmed.plan
    for window, history in zip(windows, trimmed.histories, strict=True):
        _account(window, history)
    _count(trimmed.plan, metrics, sum(len(window.spans) for window in windows))
    metrics.add("relinked_tokens", sum(window.relinked for window in windows))
    metrics.add("unrelinked_tokens", sum(window.unmet for window in windows))


def forget_produced_again(window: Window) -> None:
    """Drop what was known of rows that `window` is about to produce anew (retraction)."""
    known: list[Moved] = getattr(window.request, "irm_moved", [])
    if known:
        window.request.irm_moved = provenance.forget_from(known, window.start)


def _share(window: Window, computed: int) -> Share:
    reused = window.end - window.start - computed
    return Share(str(window.request.rid), window.start, reused, computed)


def _history(window: Window) -> list[Moved]:
    known = provenance.forget_from(getattr(window.request, "irm_moved", []), window.start)
    if not window.again:
        return known + [span.moved() for span in window.spans]
    context = max((part.depth for part in known), default=0)
    return known + list(_runs(window.spans, context))


def _runs(spans: Sequence[Span], context: int) -> Iterator[Moved]:
    """Yield how the rows of `spans` will have come about, over rows of depth `context`.

    The rests of a span are one run with the few rows computed between them, as deep as those may
    be: hundreds of runs would be hundreds of donors.
    """
    run: Moved | None = None
    last: Span | None = None
    for span in spans:
        made = span.moved()
        context = max(context, made.depth)
        if run and last and span.cut and last.cut and span[2:5] == last[2:5]:
            run = Moved(run.start, span.end, run.hops, context)
        else:
            if run:
                yield run
            run = made
        last = span
    if run:
        yield run


def _account(window: Window, history: list[Moved]) -> None:
    request, reused = window.request, window.reused
    request.irm_moved = history
    request.irm_reused = getattr(request, "irm_reused", 0) + reused
    # As SGLang counts its own hits: what a retracted request repeats is not counted twice.
    if reused and not request.retracted_stain:
        request.cached_tokens += reused
        request.cached_tokens_device += reused


def _count(plan: BatchPlan, metrics: Metrics, spans: int) -> None:
    metrics.add("planned_batches", 1)
    metrics.add("reused_tokens", sum(share.reused for share in plan.shares))
    metrics.add("computed_tokens", sum(share.computed for share in plan.shares))
    metrics.add("spans", spans)
    rows = sum(len(holes) for holes in plan.holes)
    metrics.add("rows", rows)
    metrics.observe("rows_per_forward", rows)
