"""Attention data parallelism -> whether each rank reuses what it has served, and nothing else.

A request goes to one of the two data-parallel ranks, whose tree and registry know nothing of the
other's.
"""

from __future__ import annotations

from typing import Any

from host import Host, answer
from text import Writer


def run(host: Host) -> dict[str, Any]:
    writer = Writer(seed=7)
    documents = [writer.text(200) for _ in range(2)]
    field = _rank_field(host)

    def cached(name: str, document: int, rank: int, **options: Any) -> int:
        prompt = writer.text(writer.number(33, 60)) + documents[document] + writer.text(8)
        options[field] = rank
        return int(answer(host.run(prompt, name, **options))["cached"])

    facts: dict[str, Any] = {
        "first": [cached("first-0", 0, 0), cached("first-1", 1, 1)],
        "other_rank": [cached("other-0", 1, 0), cached("other-1", 0, 1)],
        "same_rank": [cached("same-0", 0, 0), cached("same-1", 1, 1)],
        "exact": cached("exact", 0, 0, custom_params={"irminsul": False}),
    }
    facts["together"] = _together(host, writer, documents, field)
    host.idle_check()
    return facts


def _together(host: Host, writer: Writer, documents: list[list[int]], field: str) -> list[Any]:
    """Both ranks at once: batches with and without plans meet in one step."""
    requests = []
    for index in range(8):
        prompt = writer.text(40) + (documents[index // 2 % 2] if index < 6 else writer.text(200))
        options = {field: index % 2, "max_new_tokens": 12}
        requests.append(host.request(prompt + writer.text(5), f"both-{index}", **options))
    results = [answer(result) for result in host.run_all(requests)]
    return [(result["cached"], len(result["tokens"])) for result in results]


def _rank_field(host: Host) -> str:
    fields = type(host.request([2], "probe")).__dataclass_fields__
    return "routed_dp_rank" if "routed_dp_rank" in fields else "data_parallel_rank"
