"""Sessions that borrow on a pool too small for them -> retraction, aborts, eviction, no leak."""

from __future__ import annotations

from typing import Any

from host import Host, outcome
from text import Writer


def run(host: Host) -> dict[str, Any]:
    writer = Writer(seed=33)
    documents = [writer.text(520) for _ in range(4)]
    answers: list[Any] = []
    for turn in range(5):
        requests, aborts = [], {}
        for slot in range(4):
            prompt = writer.text(writer.number(20, 150))
            prompt += writer.choice(documents) + writer.text(writer.number(5, 60))
            rid = f"share-storm-{turn}-{slot}"
            requests.append(host.request(prompt, rid, max_new_tokens=writer.number(30, 70)))
            if slot == turn % 4:
                aborts[rid] = 0.3 * writer.number(1, 8)
        answers += host.run_all(requests, aborts)
    host.idle_check()
    return outcome(answers)
