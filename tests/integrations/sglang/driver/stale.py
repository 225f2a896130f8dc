"""Everything an engine has dumped -> the rows that do not belong to their token and position.

In layer 0 a row depends on its token and position alone: c_KV is a function of the token, and k_r
that token's key turned to the position. So one table of 512 tokens proves every dumped row, moved
ones and their donors alike: a stale or foreign slot cannot pass.
"""

from __future__ import annotations

from typing import Any

import torch
from host import Host
from oracle import LATENT, Oracle
from text import VOCABULARY
from torch import Tensor


def run(host: Host) -> dict[str, Any]:
    oracle = Oracle(host.config["model"])
    tokens = torch.arange(VOCABULARY)
    host.exact(tokens.tolist(), "table", max_new_tokens=1)
    table = host.rows("table", VOCABULARY)["rows"][0, :VOCABULARY]
    latent = table[:, :LATENT]
    keys = oracle.turn(table[:, LATENT:].float(), -tokens)
    wrong_latent = wrong_keys = checked = 0
    worst = 0.0
    for request in host.dumps("rows"):
        ids = request["tokens"]
        rows = request["rows"][0]
        wrong_latent += int((rows[:, :LATENT] != latent[ids]).any(dim=1).sum())
        expected = oracle.turn(keys[ids], torch.arange(len(ids)))
        errors = _relative(rows[:, LATENT:].float(), expected)
        worst = max(worst, float(errors.max()))
        wrong_keys += int((errors > 0.02).sum())
        checked += len(ids)
    return {
        "checked": checked,
        "wrong_latent": wrong_latent,
        "wrong_keys": wrong_keys,
        "worst_key_error": worst,
        "untouched": _copies(host),
    }


def _copies(host: Host) -> dict[str, int]:
    """Check that no plan read and wrote one slot, and that no slot was written twice."""
    both = twice = 0
    for plan in host.dumps("plan"):
        source, target = plan["source_slots"], plan["target_slots"]
        both += int(torch.isin(source, target).sum())
        twice += len(target) - len(target.unique())
    return {"read_and_written": both, "written_twice": twice}


def _relative(got: Tensor, wanted: Tensor) -> Tensor:
    return (got - wanted).norm(dim=1) / wanted.norm(dim=1)
