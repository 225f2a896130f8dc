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
    prompts, moved = [], []
    for index in range(CALLS):
        history += writer.text(TURN)
        prompts.append(writer.text(writer.number(8, 30)) + history)
        moved.append(answer(host.run(prompts[-1], f"chain-{index}")))
    # Afterwards: rows of exact requests are donors too, and would have kept the chain short.
    calls = [_call(host, index, prompt, moved[index]) for index, prompt in enumerate(prompts)]
    return {"calls": calls}


def _call(host: Host, index: int, prompt: list[int], moved: dict[str, Any]) -> dict[str, Any]:
    exact = answer(host.exact(prompt, f"chain-exact-{index}"))
    dumped = host.rows(f"chain-{index}", len(prompt))
    rows = dumped["rows"][:, : len(prompt)]
    truth = host.rows(f"chain-exact-{index}", len(prompt))["rows"][:, : len(prompt)]
    return {
        "prompt": len(prompt),
        "cached": moved["cached"],
        "exact_cached": exact["cached"],
        # What this call computed, over rows that it moved.
        "turn": _apart(rows, truth, len(prompt) - TURN),
        "all": _apart(rows, truth, 0),
        "hops": max((part[2] for part in dumped["moved"]), default=0),
        "depth": max((part[3] for part in dumped["moved"]), default=0),
    }


def _apart(rows: torch.Tensor, truth: torch.Tensor, start: int) -> float:
    """Return the relative error of all layers' latents from position `start` on."""
    difference = rows[:, start:, :512].float() - truth[:, start:, :512].float()
    return float(difference.norm() / truth[:, start:, :512].float().norm())
