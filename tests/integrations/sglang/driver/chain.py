"""A session whose header changes on every call -> how far its rows are from computing all of it.

Each call repeats all earlier ones behind a header of another length, so its rows are moved rows of
moved rows, and tokens computed over them. An exact request for the same prompt is the truth.
"""

from __future__ import annotations

from typing import Any

import torch
from host import Host, answer
from text import Writer

CALLS = 10
TURN = 24  # tokens that each call adds


def run(host: Host) -> dict[str, Any]:
    writer = Writer(seed=9)
    history = writer.text(160)
    calls = []
    for index in range(CALLS):
        history += writer.text(TURN)
        prompt = writer.text(writer.number(8, 30)) + history
        moved = answer(host.run(prompt, f"chain-{index}"))
        exact = answer(host.exact(prompt, f"chain-exact-{index}"))
        rows = host.rows(f"chain-{index}", len(prompt))
        truth = host.rows(f"chain-exact-{index}", len(prompt))["rows"][:, : len(prompt)]
        calls.append(
            {
                "prompt": len(prompt),
                "cached": moved["cached"],
                "exact_cached": exact["cached"],
                # What this call computed, over rows that it moved.
                "turn": _apart(rows["rows"][:, : len(prompt)], truth, len(prompt) - TURN),
                "all": _apart(rows["rows"][:, : len(prompt)], truth, 0),
                "hops": max((part[2] for part in rows["moved"]), default=0),
                "depth": max((part[3] for part in rows["moved"]), default=0),
            }
        )
    return {"calls": calls}


def _apart(rows: torch.Tensor, truth: torch.Tensor, start: int) -> float:
    """Return the relative error of all layers' latents from position `start` on."""
    difference = rows[:, start:, :512].float() - truth[:, start:, :512].float()
    return float(difference.norm() / truth[:, start:, :512].float().norm())
