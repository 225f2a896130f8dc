"""A prefill batch too long for one forward -> the heads of its requests, computed before it.

Knows the batch's fields; must not know plans, the registry or the tree.

A round that was to move rows is admitted with more tokens than the chunk budget, because it
computes only what it does not move. When it cannot move them after all, the batch holds more to
compute than memory was set aside for. It stays one batch for the scheduler: its requests' heads run
in forwards of their own, one after the other and each within the budget, and the batch keeps the
tails, whose last tokens are all that is sampled.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from irminsul.integrations.sglang.start import refuse
from irminsul.integrations.sglang.streams import to_device, use_on_this_stream


@dataclass(frozen=True)
class Head:
    """Positions ``[start, end)`` of the batch's request `owner`, with their ids and slots."""

    owner: int
    start: int
    end: int
    inputs: Tensor
    slots: Tensor


def split(batch: Any, budget: int | None) -> list[Head]:
    """Leave `batch` at most `budget` tokens to compute and return the others.

    Parameters
    ----------
    batch
        SGLang's, as it prepared it.
    budget
        Most tokens of one forward; None for no limit.

    Returns
    -------
    list of Head
        In the order in which they have to run. Nothing was changed when it is empty: the batch is
        short enough, or it is one whose results are cut by lengths that must stay.
    """
    lengths = list(batch.extend_lens)
    if budget is None or sum(lengths) <= budget or refuse.batch_reason(batch) is not None:
        return []
    kept = _tails(lengths, max(budget, len(lengths)))
    ids, slots = batch.prefill_input_ids_cpu, batch.out_cache_loc
    heads, tails, base = [], [], 0
    for owner, (prefix, length, tail) in enumerate(
        zip(batch.prefix_lens, lengths, kept, strict=True)
    ):
        for first in range(0, length - tail, budget):
            last = min(first + budget, length - tail)
            part = slice(base + first, base + last)
            heads.append(Head(owner, prefix + first, prefix + last, ids[part], slots[part]))
        tails.append(torch.arange(base + length - tail, base + length))
        base += length
    index = torch.cat(tails)
    inputs = ids[index].pin_memory() if ids.is_pinned() else ids[index]
    left = slots[to_device(index, slots.device)]
    prefixes = [
        prefix + length - tail
        for prefix, length, tail in zip(batch.prefix_lens, lengths, kept, strict=True)
    ]
    # All that may fail is done: the batch changes as a whole or not at all.
    batch.prefill_input_ids_cpu, batch.out_cache_loc = inputs, left
    batch.prefix_lens, batch.extend_lens, batch.extend_num_tokens = prefixes, kept, len(index)
    return heads


def adopt(forward_batch: Any, batch: Any, make: Callable[[Any], Any]) -> list[Any]:
    """Return the forward batches of `batch`'s heads, which have to run before `forward_batch`.

    Parameters
    ----------
    forward_batch
        What SGLang has just made of `batch`.
    make
        SGLang's ``ForwardBatch.init_new`` for another batch.
    """
    heads: list[Head] = getattr(batch, "irm_heads", None) or []
    if not heads:
        return []
    batch.irm_heads = None
    use_on_this_stream(tuple(head.slots for head in heads))
    starts = forward_batch.extend_logprob_start_lens_cpu
    if starts is not None:
        lengths = forward_batch.extend_seq_lens_cpu
        forward_batch.extend_logprob_start_lens_cpu = list(map(min, starts, lengths))
    return [make(_alone(head, batch, forward_batch.seq_lens.device)) for head in heads]


def _tails(lengths: list[int], budget: int) -> list[int]:
    """Return what each request keeps: together at most `budget`, each its last token at least."""
    kept, excess = list(lengths), sum(lengths) - budget
    for owner in sorted(range(len(kept)), key=lambda index: -kept[index]):
        if excess <= 0:
            break
        # Whole budgets, so that rounds end where SGLang's own would.
        cut = min(-(-excess // budget) * budget, kept[owner] - 1)
        kept[owner] -= cut
        excess -= cut
    return kept


def _alone(head: Head, batch: Any, device: torch.device) -> Any:
    """Return a copy of `batch` that holds one head of one request."""
    length = head.end - head.start
    alone = copy.copy(batch)
    alone.irm_plan = alone.irm_heads = None
    # Making a forward batch writes its requests' grammars there; the batch keeps its own.
    alone.sampling_info = copy.copy(batch.sampling_info)
    alone.reqs = [batch.reqs[head.owner]]
    alone.input_ids = to_device(head.inputs, device)
    alone.out_cache_loc = head.slots
    alone.prefix_lens, alone.extend_lens = [head.start], [length]
    alone.extend_num_tokens = length
    alone.extend_logprob_start_lens = [length]
    alone.return_logprob = False
    alone.extend_input_logprob_token_ids = None
    ends = torch.tensor([head.end])
    alone.seq_lens = to_device(ends.to(batch.seq_lens.dtype), device)
    alone.seq_lens_cpu, alone.seq_lens_sum = ends, head.end
    if batch.orig_seq_lens is not None:
        alone.orig_seq_lens = to_device(ends.to(batch.orig_seq_lens.dtype), device)
    one = slice(head.owner, head.owner + 1)
    alone.req_pool_indices = batch.req_pool_indices[one]
    for name in ("req_pool_indices_cpu", "top_logprobs_nums", "token_ids_logprobs"):
        values = getattr(batch, name, None)
        if values is not None:
            setattr(alone, name, values[one])
    if getattr(batch, "max_seq_len_host", None) is not None:
        alone.max_seq_len_host = head.end
    return alone
