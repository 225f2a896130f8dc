"""Two ranks of one engine -> whether they planned the same and moved the same rows.

Every rank runs a registry, a tree and a pool of its own; nothing but the requests and a digest per
plan is shared, so equal dumps show that the ranks came to the same plans by themselves.
"""

from __future__ import annotations

from typing import Any

import torch
from host import Host, answer
from text import Writer


def run(host: Host) -> dict[str, Any]:
    writer = Writer(seed=6)
    documents = [writer.text(200) for _ in range(3)]
    cached = []
    for turn in range(4):
        requests = []
        for slot in range(3):
            prompt = writer.text(writer.number(33, 90))
            for _ in range(2):
                prompt += writer.choice(documents) + writer.text(writer.number(3, 9))
            requests.append(host.request(prompt, f"ranks-{turn}-{slot}", max_new_tokens=5))
        cached += [answer(result)["cached"] for result in host.run_all(requests)]
    host.idle_check()
    return {"cached": cached, **_compared(host.dumps("plan", 0), host.dumps("plan", 1))}


def _compared(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> dict[str, Any]:
    names = ("source_slots", "target_slots", "deltas", "source_rows")
    return {
        "plans": [len(first), len(second)],
        "requests_equal": [plan["requests"] for plan in first]
        == [plan["requests"] for plan in second],
        "tensors_equal": {
            name: all(torch.equal(a[name], b[name]) for a, b in zip(first, second, strict=True))
            for name in names
        },
    }
