"""Moved text longer than the chunk budget -> how many rounds it takes and what they compute."""

from __future__ import annotations

from typing import Any

from host import Host, answer
from text import Writer


def run(host: Host) -> dict[str, Any]:
    writer = Writer(seed=8)
    documents = [writer.text(300) for _ in range(2)]
    for index, document in enumerate(documents):
        host.run(writer.text(20) + document + writer.text(5), f"budget-donor{index}")
    alone = writer.text(15) + documents[0] + writer.text(8) + documents[1] + writer.text(6)
    rids = ["budget-one", "budget-two"]
    prompts = [writer.text(12) + document + writer.text(7) for document in documents]
    answers = [answer(host.run(alone, "budget-alone"))]
    answers += [answer(result) for result in host.run(prompts, rids)]
    # Admitted as one round, and then nothing can be moved: it is computed in parts.
    late = writer.text(11) + documents[0] + writer.text(8) + documents[1] + writer.text(9)
    failed = answer(host.run(late, "late-boom"))
    exact = answer(host.exact(late, "budget-exact"))
    # Nothing is known of this one: it takes as many rounds as ever.
    host.run(writer.text(300), "budget-cold")
    return {
        "late": {
            "cached": failed["cached"],
            "tokens_equal": failed["tokens"] == exact["tokens"],
            "split_batches": host.counts().get("split_batches", 0),
        },
        "cached": [one["cached"] for one in answers],
        "prompt": [one["prompt"] for one in answers],
        "rounds": [_rounds(host, rid) for rid in ("budget-alone", *rids)],
        "cold_rounds": len([d for d in host.dumps("rows") if d["rid"] == "budget-cold"]) - 1,
        "computed": [
            sum(request["computed"] for request in plan["requests"])
            for plan in host.dumps("plan")
            if any(str(request["rid"]).startswith("budget") for request in plan["requests"])
        ],
    }


def _rounds(host: Host, rid: str) -> list[dict[str, int]]:
    return [
        {name: plan[name] for name in ("prefix", "reused", "computed")} for plan in host.plans(rid)
    ]
