"""Windows with their spans -> slots, positions, deltas and ids of every token of their batch.

Knows SGLang's slots and ids as tensors; must not know how spans were found or what runs them.

`placed` and `made_of` are plain torch and the definition. Where the CUDA library runs and nothing
is borrowed or comes from host memory, `written` has one kernel write the same from a table of runs:
a third of the time, which on the scheduler is everybody's.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from irminsul.integrations.sglang.spans import Span, Window
from irminsul.native.spans import can_write, write_spans

Placed = list[tuple[Span, Tensor]]
_INT64 = torch.int64
Holes = Sequence[Sequence[tuple[int, int]]]


class Numbers(NamedTuple):
    """What a trimmed batch and its plan know of tokens.

    Parameters
    ----------
    slots, positions : Tensor, int64, [computed tokens]
        Of the tokens to compute: their slots, and their positions in their prompts.
    inputs : Tensor, [computed tokens]
        Their ids, on the host like those of the batch.
    source_slots, target_slots, deltas : Tensor, int64, [moved tokens]
        Slots to read and to write, and the distance of every moved token.
    """

    slots: Tensor
    positions: Tensor
    inputs: Tensor
    source_slots: Tensor
    target_slots: Tensor
    deltas: Tensor


def placed(windows: Sequence[Window], slots: Tensor) -> tuple[Placed, tuple[Tensor, ...]]:
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


def made_of(
    windows: Sequence[Window], holes: Holes, moved: Placed, gaps: Sequence[Tensor], ids: Tensor
) -> Numbers:
    """Return the numbers of `windows`; one copy brings the device all it needs.

    Parameters
    ----------
    windows, holes
        What each request prefills, and what of it is computed.
    moved, gaps
        The spans that are moved, each with its slots, and the slots of all holes.
    ids
        What the batch would compute, on the host.
    """
    source, target, slots = _slots(moved, gaps)
    positions, deltas, inputs = _numbers(windows, holes, moved, ids, slots.device)
    return Numbers(slots, positions, inputs, source, target, deltas)


def written(windows: Sequence[Window], holes: Holes, slots: Tensor, ids: Tensor) -> Numbers | None:
    """Return what `made_of` would of spans that are all moved, written by one kernel.

    None where that cannot be, for example because rows come from host memory.
    """
    length = sum(window.end - window.start for window in windows)
    if not can_write(slots) or not _are_plain(slots, length):
        return None
    if len(ids) != length or ids.dtype is not torch.int64 or not ids.is_contiguous():
        return None
    computed = sum(end - start for found in holes for start, end in found)
    distant = length - computed
    runs = runs_of(windows, holes, slots, (computed, distant))
    if runs is None:
        return None
    numbers = write_spans(runs, computed, distant, slots)
    parts = numbers.split_with_sizes((computed, computed, distant, distant, distant))
    inputs = torch.empty(computed, dtype=torch.int64, pin_memory=slots.is_cuda)
    copy_ids(windows, holes, ids, inputs)
    return Numbers(parts[0], parts[1], inputs, *parts[2:])


def runs_of(
    windows: Sequence[Window], holes: Holes, slots: Tensor, tokens: tuple[int, int]
) -> array[int] | None:
    """Return the table of runs that `write_spans` takes.

    Parameters
    ----------
    slots
        The batch's, int64.
    tokens
        How many are computed and how many moved. None is returned where the runs are not as many,
        or a node's slots are no int64 beside the batch's: the kernel trusts what it is given.
    """
    runs: list[int] = []
    computed = moved = 0
    first, there = slots.data_ptr(), slots.is_cuda
    for window, found in zip(windows, holes, strict=True):
        base = first - 8 * window.start  # of position 0
        for start, end in found:
            if end > start:
                runs += (base + 8 * start, 0, computed, end - start, start)
                computed += end - start
        for span in window.spans:
            given, delta = base + 8 * span.start, span.delta
            for node, offset, count in span.rows:
                value = getattr(node, "value", None)  # rows on the host have none
                if value is None or value.is_cuda is not there:
                    return None
                if not _are_plain(value, offset + count):
                    return None
                runs += (given, value.data_ptr() + 8 * offset, moved, count, delta)
                given += 8 * count
                moved += count
        first += 8 * (window.end - window.start)
    return array("q", runs) if (computed, moved) == tokens else None


def copy_ids(windows: Sequence[Window], holes: Holes, ids: Tensor, kept: Tensor) -> None:
    """Copy the ids of the tokens to compute to `kept`; both are contiguous int64 on the host."""
    given, to = ids.data_ptr(), kept.data_ptr()
    for window, found in zip(windows, holes, strict=True):
        base = given - 8 * window.start
        for start, end in found:
            ctypes.memmove(to, base + 8 * start, 8 * (end - start))
            to += 8 * (end - start)
        given += 8 * (window.end - window.start)


def _are_plain(slots: Tensor, least: int) -> bool:
    """Return whether `slots` are int64, one behind the other, and `least` of them at least."""
    return slots.dtype is _INT64 and slots.is_contiguous() and slots.numel() >= least


def _numbers(
    windows: Sequence[Window], holes: Holes, moved: Placed, ids: Tensor, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Return positions, deltas and inputs."""
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
