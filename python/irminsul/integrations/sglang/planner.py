"""A prefill batch as SGLang built it -> the same batch with only its holes left to compute.

Knows the batch's fields and the registry's plans; must not know attention backends or streams.

Spans are found when a request is admitted and followed once more when SGLang has given every token
a slot and evicted what it needed to, so a plan names no row that is about to be freed. `prepare`
builds everything and may fail; `trim` assigns it and cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from irminsul import Namespace, Reuse
from irminsul.integrations.sglang import provenance
from irminsul.integrations.sglang.agreement import NOTHING, digest_of
from irminsul.integrations.sglang.compat import prompt_tokens
from irminsul.integrations.sglang.costs import Costs
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.mirror import TreeMirror, ids_of
from irminsul.integrations.sglang.provenance import Moved
from irminsul.integrations.sglang.spans import (
    BatchPlan,
    Found,
    HostCopy,
    Limits,
    Share,
    Span,
    Window,
)


def find_spans(
    window: Window,
    mirror: TreeMirror,
    namespace: Namespace,
    limits: Limits,
    metrics: Metrics,
) -> None:
    """Fill `window` with what the registry can serve of it.

    A request asks again in every round and on every attempt to be admitted; while nothing was
    recorded since, what was found then is followed through the tree instead of looked up again.

    The last token of a round is never reused: a row without a token to compute would have no
    logits, and the whole prompt's last token decides the answer.
    """
    known: Found | None = getattr(window.request, "irm_found", None)
    if known is None or known.version != mirror.version or known.start > window.start:
        spans = _looked_up(window, mirror, namespace, limits, metrics)
        known = Found(mirror.version, mirror.changes, window.start, spans)
        window.request.irm_found = known
        window.spans = list(spans)
    else:
        window.spans = [
            span.part(max(span.start, window.start), span.end)
            for span in known.spans
            if span.end > window.start
        ]
    window.changes = known.changes
    follow(window, mirror, metrics)
    window.cut(window.end)


def _looked_up(
    window: Window, mirror: TreeMirror, namespace: Namespace, limits: Limits, metrics: Metrics
) -> list[Span]:
    tokens = prompt_tokens(window.request)
    with metrics.timed("lookup_seconds"):
        looked_up = mirror.registry.lookup(
            ids_of(tokens), namespace=namespace, prefix_len=window.start
        )
    with looked_up as plan:
        found = [part for part in plan.segments if isinstance(part, Reuse)]
    spans = []
    for reuse in found:
        if max(reuse.target, reuse.source) + reuse.length > limits.positions:
            metrics.fallback("beyond_rotation_table")
            continue
        rows = mirror.rows(reuse, tokens)
        if rows is None:
            metrics.fallback("stale", "a planned donor is not what was recorded; computing")
            continue
        end = reuse.target + reuse.length
        spans.append(Span(reuse.target, end, reuse.delta, reuse.hops, reuse.depth, tuple(rows)))
    return spans


def follow(window: Window, mirror: TreeMirror, metrics: Metrics) -> None:
    """Find the rows of `window` where they are now; what was evicted is computed."""
    if window.changes == mirror.changes:
        return
    window.changes = mirror.changes
    tokens = prompt_tokens(window.request)
    live = []
    for span in window.spans:
        source = span.start - span.delta
        # Rows on the host are held where they are by their lease.
        rows = span.rows if span.on_host else mirror.follow(span.rows, source, tokens, span.start)
        if rows is None:
            metrics.add("evicted_spans", 1)
        else:
            live.append(replace(span, rows=tuple(rows)))
    window.spans = live


def keep_worthwhile(window: Window, costs: Costs, metrics: Metrics) -> None:
    """Give spans back to computation that would take longer to move than to compute."""
    kept = costs.worthwhile(window.start, window.end, [(s.start, s.end) for s in window.spans])
    metrics.add("unprofitable_spans", len(window.spans) - len(kept))
    window.spans = [span for span in window.spans if (span.start, span.end) in kept]


def digest(windows: Sequence[Window]) -> int:
    """Return a number that two ranks share when they reuse the same rows; 0 is no reuse."""
    if not any(window.spans for window in windows):
        return NOTHING
    numbers = []
    for window in windows:
        numbers += [window.start, window.end, len(window.spans)]
        for span in window.spans:
            numbers += [span.start, span.end, span.delta, span.hops, span.depth, len(span.rows)]
            numbers += [number for _, offset, count in span.rows for number in (offset, count)]
    return digest_of(numbers)


def cut_to_limits(windows: Sequence[Window], limits: Limits, metrics: Metrics) -> None:
    """Give the shortest spans back to computation until the batch keeps its limits."""
    for window in windows:
        window.spans = [span for span in window.spans if span.length >= limits.min_span]
    while any(window.spans for window in windows) and _exceeds(windows, limits):
        owner = min(
            (window for window in windows if window.spans),
            key=lambda window: min(span.length for span in window.spans),
        )
        owner.spans.remove(min(owner.spans, key=lambda span: span.length))
        metrics.add("dropped_spans", 1)


def windows_of(batch: Any) -> list[Window]:
    """Return what each request of `batch` prefills in this round."""
    return [
        Window(request, prefix, prefix + length)
        for request, prefix, length in zip(
            batch.reqs, batch.prefix_lens, batch.extend_lens, strict=True
        )
    ]


@dataclass(frozen=True)
class Trimmed:
    """What `trim` will make of a batch."""

    plan: BatchPlan
    inputs: Tensor
    slots: Tensor
    computed: list[int]
    prefixes: list[int]
    histories: list[list[Moved]]


def prepare(batch: Any, windows: list[Window]) -> Trimmed:
    """Return `batch` without the reused tokens of `windows`; nothing is changed yet.

    Slots and ``seq_lens`` stay: the request owns its rows, moved or computed. For each request
    ``prefix_lens + extend_lens`` stays its end, so code that adds the two sees no difference.
    """
    positions, index = _computed(windows)
    computed = [window.end - window.start - window.reused for window in windows]
    return Trimmed(
        plan=_device_plan(batch, windows, positions),
        inputs=_select(batch.prefill_input_ids_cpu, index),
        slots=batch.out_cache_loc[to_device(index, batch.out_cache_loc.device)],
        computed=computed,
        prefixes=[window.end - count for window, count in zip(windows, computed, strict=True)],
        histories=[_history(window) for window in windows],
    )


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


def forget_produced_again(window: Window) -> None:
    """Drop what was known of rows that `window` is about to produce anew (retraction)."""
    known: list[Moved] = getattr(window.request, "irm_moved", [])
    if known:
        window.request.irm_moved = provenance.forget_from(known, window.start)


def _exceeds(windows: Sequence[Window], limits: Limits) -> bool:
    starts = [start for window in windows for start, end in window.holes() if end > start]
    return len(starts) > limits.rows or sum(starts) > limits.row_tokens


def _computed(windows: list[Window]) -> tuple[Tensor, Tensor]:
    """Return the positions of all tokens to compute, and where in the batch they are."""
    positions, index, base = [], [], 0
    for window in windows:
        for start, end in window.holes():
            place = np.arange(start, end, dtype=np.int64)
            positions.append(place)
            index.append(place + (base - window.start))
        base += window.end - window.start
    return torch.from_numpy(np.concatenate(positions)), torch.from_numpy(np.concatenate(index))


def _device_plan(batch: Any, windows: list[Window], positions: Tensor) -> BatchPlan:
    slots = batch.out_cache_loc
    placed = _placed(windows, slots)
    moved = [(span, target) for span, target in placed if not span.on_host]
    spans = [span for span, _ in moved]
    source = [
        node.value[offset : offset + count] for span in spans for node, offset, count in span.rows
    ]
    return BatchPlan(
        holes=[window.holes() for window in windows],
        positions=to_device(positions, slots.device),
        source_slots=_joined(source, slots),
        target_slots=_joined([target for _, target in moved], slots),
        deltas=_deltas(spans, slots.device),
        shares=tuple(_share(window) for window in windows),
        host=HostCopy.of([pair for pair in placed if pair[0].on_host]),
    )


def _placed(windows: list[Window], slots: Tensor) -> list[tuple[Span, Tensor]]:
    """Return every span with the slots of its tokens."""
    found, base = [], 0
    for window in windows:
        skip = base - window.start
        found += [(span, slots[span.start + skip : span.end + skip]) for span in window.spans]
        base += window.end - window.start
    return found


def _joined(parts: list[Tensor], like: Tensor) -> Tensor:
    return torch.cat(parts).to(torch.int64) if parts else like.new_empty(0, dtype=torch.int64)


def _deltas(spans: list[Span], device: torch.device) -> Tensor:
    """Return the distance of every moved token, [moved tokens]."""
    deltas = np.repeat([span.delta for span in spans], [span.length for span in spans])
    return to_device(torch.from_numpy(deltas.astype(np.int64, copy=False)), device)


def _share(window: Window) -> Share:
    reused = window.reused
    computed = window.end - window.start - reused
    return Share(str(window.request.rid), window.start, reused, computed)


def _history(window: Window) -> list[Moved]:
    known = provenance.forget_from(getattr(window.request, "irm_moved", []), window.start)
    return known + [span.moved() for span in window.spans]


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


def _select(ids: Tensor, index: Tensor) -> Tensor:
    chosen = ids[index]
    return chosen.pin_memory() if ids.is_pinned() else chosen


def to_device(host: Tensor, device: torch.device) -> Tensor:
    """Copy `host` to `device` without waiting for it."""
    if device.type == "cpu":
        return host
    return host.pin_memory().to(device, non_blocking=True)
