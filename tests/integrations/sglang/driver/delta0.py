"""A prompt repeated with holes at delta 0 -> whether tokens and rows equal the full prefill."""

from __future__ import annotations

from typing import Any

import torch
from host import Host, answer
from text import Writer

# Below 192 tokens torch's CPU attention gives a query the same bits whatever keys follow it; above,
# it does not, so nothing built on it could be compared bit for bit.
LENGTH = 165


def run(host: Host) -> dict[str, Any]:
    writer = Writer(seed=1)
    prompt = writer.text(LENGTH)
    full = answer(host.run(prompt, "full"))
    rows = host.rows("full", LENGTH)["rows"][:, :LENGTH]
    cases = [_case(host, prompt, number, full, rows) for number in host.config["holes"]]
    return {"full": full, "cases": cases, "batch": _batch(host, prompt, full, writer)}


def _case(
    host: Host, prompt: list[int], number: int, full: dict[str, Any], rows: torch.Tensor
) -> dict[str, Any]:
    rid = f"holes{number}-alone"
    got = answer(host.run(prompt, rid))
    plans = host.plans(rid)
    again = host.rows(rid, LENGTH)["rows"][:, :LENGTH]
    return {
        "holes": number,
        "tokens_equal": got["tokens"] == full["tokens"],
        "rows_equal": torch.equal(again, rows),
        "cached": got["cached"],
        "reused": sum(plan["reused"] for plan in plans),
        "rounds": len(plans),
        "hole_lengths": [[end - start for start, end in plan["holes"]] for plan in plans],
        "deltas": sorted({span[2] for plan in plans for span in plan["spans"]}),
    }


def _batch(host: Host, prompt: list[int], full: dict[str, Any], writer: Writer) -> dict[str, Any]:
    """Run one request with holes and one without in the same batch."""
    for attempt in range(5):
        other = writer.text(100)
        rids = [f"holes3-pair{attempt}", f"fresh-pair{attempt}"]
        results = [answer(result) for result in host.run([prompt, other], rids)]
        together = any(
            {request["rid"] for request in plan["requests"]} == set(rids)
            for plan in host.dumps("plan")
        )
        if together:
            break
    alone = answer(host.exact(other, f"fresh-alone{attempt}"))
    return {
        "together": together,
        "holed_equal": results[0]["tokens"] == full["tokens"],
        "fresh_equal": results[1]["tokens"] == alone["tokens"],
        "cached": [result["cached"] for result in results],
    }
