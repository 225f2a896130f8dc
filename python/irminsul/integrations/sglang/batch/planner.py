"""A prefill batch as SGLang built it -> the same batch with only its holes left to compute.

Knows the batch's fields and the spans; must not know how they were found, attention backends or
streams.

SGLang has given every token a slot and evicted what it needed to, so a plan made now names no row
that is about to be freed. `prepare` builds everything and may fail; `trim` assigns it and cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

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

Placed = list[tuple[Span, Tensor]]
Divide = Callable[[list[Window], Placed], tuple[Placed, Any]]


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


def prepare(batch: Any, windows: list[Window], divide: Divide | None = None) -> Trimmed:
    """Return `batch` without the reused tokens of `windows`; nothing is changed yet.

    Slots and ``seq_lens`` stay: the request owns its rows, moved or computed. For each request
    ``prefix_lens + extend_lens`` stays its end, so code that adds the two sees no difference.

    Parameters
    ----------
    divide
        Says which part of the spans is moved, and what is borrowed instead; None moves all.
    """
    placed, gaps = _placed(windows, batch.out_cache_loc)
    lent: Any = None
    if divide is not None:
        placed, lent = divide(windows, placed)
    moved = [pair for pair in placed if not pair[0].on_host]
    holes = [window.holes() for window in windows]
    computed = [sum(end - start for start, end in found) for found in holes]
    source, target, slots = _slots(moved, gaps)
    device = batch.out_cache_loc.device
    positions, deltas, inputs = _numbers(windows, holes, moved, batch.prefill_input_ids_cpu, device)
    plan = BatchPlan(
        holes=holes,
        positions=positions,
        source_slots=source,
        target_slots=target,
        deltas=deltas,
        shares=tuple(map(_share, windows, computed)),
        host=HostCopy.of([pair for pair in placed if pair[0].on_host]),
        lent=lent,
    )
    prefixes = [window.end - count for window, count in zip(windows, computed, strict=True)]
    return Trimmed(plan, inputs, slots, computed, prefixes, [_history(w) for w in windows])


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


def _numbers(
    windows: list[Window],
    holes: list[list[tuple[int, int]]],
    moved: Placed,
    ids: Tensor,
    device: torch.device,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what has to be known of tokens; one copy brings the device all it needs.

    Returns
    -------
    positions : Tensor, int64, [computed tokens]
        In its prompt, of each token to compute.
    deltas : Tensor, int64, [moved tokens]
        Distance of every moved token.
    inputs : Tensor, int64, [computed tokens]
        Ids of the tokens to compute, on the host like those of the batch.
    """
    computed = sum(end - start for found in holes for start, end in found)
    distant = sum(span.length for span, _ in moved)
    host = torch.empty(2 * computed + distant, dtype=torch.int64, pin_memory=device.type == "cuda")
    numbers, given = host.numpy(), ids.numpy()
    positions, inputs = numbers[:computed], numbers[computed + distant :]
    at = base = 0
    for window, found in zip(windows, holes, strict=True):
        for start, end in found:
            after, first = at + end - start, base + start - window.start
            positions[at:after] = np.arange(start, end)
            inputs[at:after] = given[first : first + end - start]
            at = after
        base += window.end - window.start
    for span, _ in moved:
        numbers[at : at + span.length] = span.delta
        at += span.length
    needed, kept = host.split_with_sizes((computed + distant, computed))
    there = needed.to(device, non_blocking=True).split_with_sizes((computed, distant))
    return there[0], there[1], kept if kept.dtype is ids.dtype else kept.to(ids.dtype)


def _slots(moved: Placed, gaps: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the slots to read, to write, and of the tokens to compute, int64.

    Those to compute come first in memory: SGLang's kernels were compiled for aligned tensors.
    """
    source = [
        node.value.narrow(0, offset, count)
        for span, _ in moved
        for node, offset, count in span.rows
    ]
    distant, kept = sum(span.length for span, _ in moved), sum(map(len, gaps))
    joined = torch.cat([*gaps, *source, *(target for _, target in moved)])
    if joined.dtype is not torch.int64:
        joined = joined.to(torch.int64)
    computed, read, written = joined.split_with_sizes((kept, distant, distant))
    return read, written, computed


def _placed(windows: list[Window], slots: Tensor) -> tuple[Placed, tuple[Tensor, ...]]:
    """Return every span with the slots of its tokens, and the slots between them."""
    lengths: list[int] = []
    for window in windows:
        position = window.start
        for span in window.spans:
            lengths += [span.start - position, span.length]
            position = span.end
        lengths += [window.end - position, 0]
    # Gaps and spans take turns, so every second part is a span's; one call makes all of them.
    parts = slots.split_with_sizes(lengths)
    found: Placed = []
    first = 0
    for window in windows:
        found += zip(window.spans, parts[2 * first + 1 :: 2], strict=False)
        first += len(window.spans) + 1
    return found, parts[::2]


def _share(window: Window, computed: int) -> Share:
    reused = window.end - window.start - computed
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
