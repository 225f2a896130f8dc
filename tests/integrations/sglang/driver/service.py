"""Requests as users send them -> who shares what, what opts out, and what survives failures."""

from __future__ import annotations

import itertools
from typing import Any

from host import Host, answer
from text import Writer


def run(host: Host) -> dict[str, Any]:
    writer = Writer(seed=3)
    facts = {
        "tenants": _tenants(host, writer),
        "opt_out": _opt_out(host, writer),
        "planner": _planner_raises(host, writer),
        "logprobs": _logprobs(host, writer),
        "order": _reordered(host, writer),
        "flush": _flush(host, writer),
        "abort": _abort(host, writer),
    }
    host.idle_check()
    return facts


def _moved(writer: Writer, document: list[int]) -> list[int]:
    return writer.text(writer.number(33, 90)) + document + writer.text(10)


def _tenants(host: Host, writer: Writer) -> dict[str, Any]:
    document = writer.text(200)
    salted = "cache_salt" in type(host.request([2], "probe")).__dataclass_fields__

    def cached(rid: str, **key: str) -> int:
        return int(answer(host.run(_moved(writer, document), rid, **key))["cached"])

    facts = {
        "first": cached("tenant-a1", extra_key="a"),
        "same": cached("tenant-a2", extra_key="a"),
        "other": cached("tenant-b", extra_key="b"),
        "none": cached("tenant-none"),
        "none_again": cached("tenant-none2"),
    }
    if salted:
        facts["salted"] = cached("salt-1", cache_salt="ab", extra_key="c")
        facts["salted_same"] = cached("salt-2", cache_salt="ab", extra_key="c")
        facts["salted_joined"] = cached("salt-3", cache_salt="a", extra_key="bc")
    return facts


def _opt_out(host: Host, writer: Writer) -> dict[str, Any]:
    document = writer.text(200)
    host.run(_moved(writer, document), "opt-donor")
    facts = {}
    for name, option in {
        "false": False,
        "exact": {"mode": "exact"},
        "nonsense": "sometimes",
        "unknown_key": {"modus": "reuse"},
        "true": True,
        "reuse": {"mode": "reuse"},
        "absent": None,
    }.items():
        prompt = _moved(writer, document)
        params = {} if option is None else {"custom_params": {"irminsul": option}}
        result = answer(host.run(prompt, f"opt-{name}", **params))
        facts[name] = {"cached": result["cached"], "prompt": result["prompt"]}
    return facts


def _planner_raises(host: Host, writer: Writer) -> dict[str, Any]:
    document = writer.text(200)
    host.run(_moved(writer, document), "raise-donor")
    prompt = _moved(writer, document)
    failed = answer(host.run(prompt, "boom-1"))
    after = answer(host.run(_moved(writer, document), "raise-after"))
    exact = answer(host.exact(prompt, "raise-exact"))
    return {
        "cached": failed["cached"],
        "tokens_equal": failed["tokens"] == exact["tokens"],
        "reused_after": after["cached"],
        "failures": host.counts()["fallback"].get("planner", 0),
    }


def _logprobs(host: Host, writer: Writer) -> dict[str, Any]:
    document = writer.text(200)
    host.run(_moved(writer, document), "logprob-donor")
    output = host.run(_moved(writer, document), "logprob-output", return_logprob=True)
    prompt = _moved(writer, document)
    whole = host.run(prompt, "logprob-prompt", return_logprob=True, logprob_start_len=0)
    return {
        "output_cached": answer(output)["cached"],
        "output_count": len(output["meta_info"]["output_token_logprobs"]),
        "prompt_cached": answer(whole)["cached"],
        "prompt_count": len(whole["meta_info"]["input_token_logprobs"]),
        "prompt_length": len(prompt),
    }


def _reordered(host: Host, writer: Writer) -> dict[str, Any]:
    """Four documents in another order behind another header."""
    documents = [writer.text(160) for _ in range(4)]
    host.run(
        writer.text(40) + [token for document in documents for token in document], "order-donor"
    )
    prompt = writer.text(55)
    for index in (2, 0, 3, 1):
        prompt += documents[index] + writer.text(5)
    result = answer(host.run(prompt, "order-moved"))
    plans = host.plans("order-moved")
    return {
        "cached": result["cached"],
        "prompt": len(prompt),
        "deltas": len({span[2] for plan in plans for span in plan["spans"]}),
        "tiles": all(_tiles(plan) for plan in plans),
        "computed": sum(end - start for plan in plans for start, end in plan["holes"]),
    }


def _tiles(plan: dict[str, Any]) -> bool:
    """Every position of the round is computed or moved, exactly once."""
    parts = sorted([tuple(hole) for hole in plan["holes"]] + [s[:2] for s in plan["spans"]])
    joined = all(left[1] == right[0] for left, right in itertools.pairwise(parts))
    return joined and parts[0][0] == plan["prefix"]


def _flush(host: Host, writer: Writer) -> dict[str, Any]:
    document = writer.text(200)
    host.run(_moved(writer, document), "flush-donor")
    before = answer(host.run(_moved(writer, document), "flush-before"))
    host.flush()
    after = answer(host.run(_moved(writer, document), "flush-after"))
    again = answer(host.run(_moved(writer, document), "flush-again"))
    return {"before": before["cached"], "after": after["cached"], "again": again["cached"]}


def _abort(host: Host, writer: Writer) -> dict[str, Any]:
    document = writer.text(400)
    host.run(_moved(writer, document), "abort-donor")
    requests, aborts = [], {}
    for index in range(4):
        rid = f"abort-{index}"
        requests.append(host.request(_moved(writer, document) * 2, rid, max_new_tokens=200))
        aborts[rid] = 0.2 + 0.4 * index
    bystander = writer.text(80)
    requests.append(host.request(bystander, "bystander", custom_params={"irminsul": False}))
    results = host.run_all(requests, aborts)
    alone = answer(host.exact(bystander, "bystander-alone"))
    ends = [
        r["meta_info"]["finish_reason"]["type"] if isinstance(r, dict) else type(r).__name__
        for r in results[:-1]
    ]
    return {
        "ends": ends,
        "bystander_equal": answer(results[-1])["tokens"] == alone["tokens"],
        "after": answer(host.run(_moved(writer, document), "abort-after"))["cached"],
    }
