"""Settings that begin with ``test_`` -> what tests need from inside a scheduler process.

Does nothing unless such a setting is given. Must not be needed by anything but tests.

Rows must be dumped before insertion: afterwards the tree may have replaced the request's rows by
its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from irminsul.integrations.sglang.compat import pool_row, prompt_tokens

_number = itertools.count()

HOLE = 7


def selected(request: Any, prefix: str) -> bool:
    """Return whether a test hook for request ids that start with `prefix` means `request`."""
    return bool(prefix) and str(request.rid).startswith(prefix)


def fail_late(windows: Any, prefix: str) -> None:
    """Fail to plan a batch that was admitted when a request's id begins with ``late-`` and that."""
    if prefix and any(selected(window.request, f"late-{prefix}") for window in windows):
        raise RuntimeError("asked to fail late by IRMINSUL_TEST_PLANNER_RAISES")


def keep_holes(window: Any, prefix: str) -> None:
    """Cut holes into the spans of a request whose id is `prefix`, their number, ``-``, anything.

    The holes are `HOLE` tokens each, evenly spread, the last at the prompt's end. Without this a
    repeated prompt has one span, because all of it is known.
    """
    if not selected(window.request, prefix):
        return
    number = int(str(window.request.rid).removeprefix(prefix).split("-")[0])
    length = len(prompt_tokens(window.request))
    for index in range(number):
        end = length * (index + 1) // number
        window.spans = [part for span in window.spans for part in span.without(end - HOLE, end)]


def form(request: Any, settings: Any) -> str | None:
    """Return the form of attention, ``absorb`` or ``mha``, that the id of `request` names."""
    if not settings.test_form:
        return None
    parts = str(request.rid).split("-")
    return next((name for name in ("absorb", "mha") if name in parts), None)


def form_of_batch(plan: Any, settings: Any) -> str | None:
    """Return the form that the first request of a batch asks for."""
    return form(plan.shares[0], settings) if plan.shares else None


def dump(cache: Any, folder: str, request: Any, length: int, counts: dict[str, Any]) -> None:
    """Write ids, slots, rows of all layers and what was moved to ``<number>-<rank>-rows.pt``."""
    if not folder:
        return
    ids = [*request.origin_input_ids, *request.output_ids][:length]
    slots = cache.req_to_token_pool.req_to_token[pool_row(request), :length].to(torch.int64)
    content = {
        "rid": str(request.rid),
        "tokens": torch.tensor(ids),
        "slots": slots.cpu(),
        "rows": _rows(cache.token_to_kv_pool_allocator.get_kvcache(), slots),
        "moved": [(m.start, m.end, m.hops, m.depth) for m in getattr(request, "irm_moved", [])],
        "counts": counts,
    }
    _save(folder, "rows", content)


def dump_plan(folder: str, pool: Any, windows: Iterable[Any], plan: Any) -> None:
    """Write what each request reuses and the donor rows as they are to a file ``...-plan.pt``."""
    if not folder:
        return
    content = {
        "requests": [
            {
                "rid": share.rid,
                "prefix": share.prefix,
                "reused": share.reused,
                "computed": share.computed,
                "holes": holes,
                "spans": [(span.start, span.end, span.delta) for span in window.spans],
            }
            for window, share, holes in zip(windows, plan.shares, plan.holes, strict=True)
        ],
        "source_rows": _rows(pool, plan.source_slots),
        "target_slots": plan.target_slots.cpu(),
        "source_slots": plan.source_slots.cpu(),
        "deltas": plan.deltas.cpu(),
    }
    _save(folder, "plan", content)


def _rows(pool: Any, slots: Tensor) -> Tensor:
    """Return the rows of `slots` in every layer, [layers, slots, 576]."""
    if slots.is_cuda:
        torch.cuda.synchronize(slots.device)
    return torch.stack([layer[slots, 0].cpu() for layer in pool.kv_buffer])


def _save(folder: str, kind: str, content: dict[str, Any]) -> None:
    # Every rank of an engine writes here. Renamed into place: a reader sees whole files only.
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    target = Path(folder) / f"{next(_number):06d}-{rank}-{kind}.pt"
    torch.save(content, target.with_suffix(".part"))
    target.with_suffix(".part").rename(target)
