"""A forward batch and its plan -> the same batch with one row per hole.

Knows SGLang's forward batch; must not know how holes were found, or what is done with the rows.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch
from torch import Tensor

from irminsul.integrations.sglang.spans import BatchPlan
from irminsul.integrations.sglang.streams import to_device


def expand(forward_batch: Any, plan: BatchPlan) -> Any:
    """Return a shallow copy of `forward_batch` with one row per hole.

    Requests that a mixed batch appended after planning stay one row each.
    """
    bounds, owners = _rows(forward_batch, plan)
    view = copy.copy(forward_batch)
    view.batch_size = len(bounds)
    _set_bounds(view, forward_batch, bounds)
    _set_owners(view, forward_batch, owners)
    return view


def _set_bounds(view: Any, original: Any, bounds: list[tuple[int, int]]) -> None:
    """Give each row its prefix, its tokens to compute and its end."""
    starts = [start for start, _ in bounds]
    ends = [end for _, end in bounds]
    lengths = [end - start for start, end in bounds]
    view.seq_lens = _like(ends, original.seq_lens)
    view.seq_lens_cpu = torch.tensor(ends, dtype=torch.int64)
    view.seq_lens_sum = sum(ends)
    if original.orig_seq_lens is not None:
        view.orig_seq_lens = _like(ends, original.orig_seq_lens)
    view.extend_prefix_lens = _like(starts, original.extend_prefix_lens)
    view.extend_prefix_lens_cpu = starts
    view.extend_seq_lens = _like(lengths, original.extend_seq_lens)
    view.extend_seq_lens_cpu = lengths
    firsts = [0, *itertools.accumulate(lengths[:-1])]
    view.extend_start_loc = _like(firsts, original.extend_start_loc)
    if getattr(original, "max_seq_len_host", None) is not None:
        view.max_seq_len_host = max(ends)


def _set_owners(view: Any, original: Any, owners: list[int]) -> None:
    """Give each row what belongs to its request."""
    index = torch.tensor(owners, dtype=torch.int64)
    view.req_pool_indices = original.req_pool_indices[to_device(index, original.seq_lens.device)]
    if getattr(original, "req_pool_indices_cpu", None) is not None:
        view.req_pool_indices_cpu = original.req_pool_indices_cpu[index]
    for name in ("lora_ids", "rids"):
        values = getattr(original, name, None)
        if values is not None:
            setattr(view, name, [values[owner] for owner in owners])


def _rows(forward_batch: Any, plan: BatchPlan) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the bounds of each row and the request it belongs to."""
    bounds: list[tuple[int, int]] = []
    owners: list[int] = []
    for owner, (prefix, length) in enumerate(
        zip(forward_batch.extend_prefix_lens_cpu, forward_batch.extend_seq_lens_cpu, strict=True)
    ):
        holes = plan.holes[owner] if owner < len(plan.holes) else [(prefix, prefix + length)]
        bounds += holes
        owners += [owner] * len(holes)
    return bounds, owners


def logprob_starts(forward_batch: Any, plan: BatchPlan) -> list[int] | None:
    """Return where logprobs start per request, counted in the tokens that are left.

    Only requests without prompt logprobs are planned, and for those SGLang puts the start at the
    end. The schedule batch keeps the untrimmed numbers: its result is sliced by untrimmed lengths.
    """
    starts = forward_batch.extend_logprob_start_lens_cpu
    if starts is None:
        return None
    lengths = forward_batch.extend_seq_lens_cpu
    return [*lengths[: len(plan.holes)], *starts[len(plan.holes) :]]


def _like(values: list[int], tensor: Tensor) -> Tensor:
    return to_device(torch.tensor(values, dtype=tensor.dtype), tensor.device)
