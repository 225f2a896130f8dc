"""A pool far too small for its load -> retraction, eviction between rounds, and no leak."""

from __future__ import annotations

from typing import Any

from host import Host, answer, outcome
from text import Writer


def run(host: Host) -> dict[str, Any]:
    writer = Writer(seed=4)
    documents = [writer.text(180) for _ in range(5)]
    evicted = _storm(host, writer, documents)
    retracted = _retraction(host, writer, documents)
    host.idle_check()
    return {"storm": evicted, "retraction": retracted, "pool": host.config["pool"]}


def _storm(host: Host, writer: Writer, documents: list[list[int]]) -> dict[str, Any]:
    """Rounds of three requests whose documents do not all fit; some are aborted on the way."""
    answers: list[Any] = []
    for turn in range(6):
        requests, aborts = [], {}
        for slot in range(3):
            prompt = writer.text(writer.number(20, 50))
            for _ in range(2):
                prompt += writer.choice(documents) + writer.text(writer.number(2, 9))
            rid = f"storm-{turn}-{slot}"
            requests.append(host.request(prompt, rid, max_new_tokens=writer.number(1, 30)))
            if slot == turn % 3:
                aborts[rid] = 0.1 * writer.number(1, 8)
        answers += host.run_all(requests, aborts)
    return outcome(answers)


def _retraction(host: Host, writer: Writer, documents: list[list[int]]) -> dict[str, Any]:
    """Long answers of several requests at once: the pool runs out while they decode."""
    requests = [
        host.request(
            writer.text(30) + documents[index] + writer.text(5), f"long-{index}", max_new_tokens=100
        )
        for index in range(4)
    ]
    results = [answer(result) for result in host.run_all(requests)]
    return {
        "retractions": sum(result["retractions"] for result in results),
        "lengths": [len(result["tokens"]) for result in results],
        "cached": [result["cached"] for result in results],
        "prompts": [result["prompt"] for result in results],
    }
