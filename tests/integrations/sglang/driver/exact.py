"""A path that the tree holds approximately -> what an exact request for it decodes on."""

from __future__ import annotations

from typing import Any

import torch
from host import Host, answer
from text import Writer

STEPS = 32


def run(host: Host) -> dict[str, Any]:
    writer = Writer(seed=5)
    document = writer.text(200)
    prompt = writer.text(70) + document + writer.text(25)
    first = answer(host.exact(prompt, "exact-first", max_new_tokens=STEPS))
    host.flush()
    host.run(writer.text(40) + document + writer.text(10), "exact-donor")
    tainted = answer(host.run(prompt, "exact-taint-absorb", max_new_tokens=STEPS))
    second = answer(host.exact(prompt, "exact-second", max_new_tokens=STEPS))
    third = answer(host.exact(prompt, "exact-third", max_new_tokens=STEPS))
    # The last token is sampled and has no row yet.
    length = len(prompt) + STEPS - 1
    rows = [host.rows(f"exact-{name}", length)["rows"] for name in ("first", "second")]
    approximate = host.rows("exact-taint-absorb", len(prompt))["rows"][:, : len(prompt)]
    return {
        "tainted": tainted["cached"],
        "cached": [first["cached"], second["cached"], third["cached"]],
        "tokens_equal": first["tokens"] == second["tokens"] == third["tokens"],
        "cold_equal": first["tokens"] == second["tokens"],
        "rows_equal": torch.equal(rows[0], rows[1]),
        "taint_differs": not torch.equal(approximate, rows[0][:, : len(prompt)]),
    }
