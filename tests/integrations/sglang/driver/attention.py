"""Prompts of many lengths, alone, together and on a shared prefix -> the tokens an engine gives."""

from __future__ import annotations

from typing import Any

from host import Host, answer
from text import Writer

LENGTHS = (1, 5, 63, 64, 65, 130, 190)


def run(host: Host) -> dict[str, Any]:
    writer = Writer(seed=11)
    prompts = [writer.text(length) for length in LENGTHS]
    alone = [host.exact(prompt, f"alone-{len(prompt)}", max_new_tokens=6) for prompt in prompts]
    host.flush()
    batch = [
        host.request(
            prompt,
            f"together-{len(prompt)}",
            max_new_tokens=6,
            custom_params={"irminsul": False},
        )
        for prompt in prompts
    ]
    together = host.run_all(batch)
    longer = [prompts[-1] + writer.text(20), prompts[-1][:100] + writer.text(30)]
    branches = [host.exact(prompt, f"branch-{i}") for i, prompt in enumerate(longer)]
    return {
        "alone": [answer(result)["tokens"] for result in alone],
        "together": [answer(result)["tokens"] for result in together],
        "branches": [answer(result)["tokens"] for result in branches],
        "cached": [answer(result)["cached"] for result in branches],
    }
