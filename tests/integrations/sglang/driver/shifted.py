"""A document that moved -> its rows and the answer, against the model's own and the oracle's."""

from __future__ import annotations

from typing import Any

import torch
from host import Host, answer
from oracle import LATENT, Oracle
from text import VOCABULARY, Writer
from torch import Tensor


def run(host: Host) -> dict[str, Any]:
    writer = Writer(seed=2)
    document = writer.text(300)
    host.run(writer.text(90) + document + writer.text(20), "donor")
    facts = {}
    for shift, head in (("later", 131), ("earlier", 47)):
        prompt = writer.text(head) + document + writer.text(30)
        facts[shift] = _moved(host, prompt, f"moved-{shift}-absorb")
        host.flush()
        host.run(writer.text(90) + document + writer.text(20), f"donor-{shift}")
    if host.config.get("shifts", True):
        facts["shifts"] = _shifts(host, writer)
    facts["relinked"] = _relinked(host, writer)
    return facts


def _relinked(host: Host, writer: Writer) -> dict[str, Any]:
    """Two documents in another order, some of whose rows are computed again."""
    one, two = writer.text(150), writer.text(150)
    donor = writer.text(60) + one + two + writer.text(10)
    prompt = writer.text(80) + two + one + writer.text(20)
    found, moved = {}, {}
    for name, share in (("off", 0), ("on", 0.03)):
        host.flush()
        host.run(donor, f"relink-{name}-donor")
        rid, option = f"relink-{name}-absorb", {"irminsul": {"relink": share}}
        found[name] = _moved(host, prompt, rid, custom_params=option)
        spans = host.plans(rid)[0]["spans"]
        moved[name] = {p: p - delta for start, end, delta in spans for p in range(start, end)}
    again = moved["off"].keys() - moved["on"].keys()
    wanted = _lacking(prompt, moved["off"])[: round(0.03 * len(moved["off"]))]
    return {
        **found["on"],
        "wanted": len(wanted),
        "missing": sorted(set(wanted) - again),
        "besides": [p for p in again if min(abs(p - other) for other in wanted) > 8],
        "still_moved": moved["on"].items() <= moved["off"].items(),
        "before": found["off"]["oracle"],
        "counted": host.counts()["relinked_tokens"],
    }


def _lacking(prompt: list[int], source: dict[int, int]) -> list[int]:
    """Return moved positions with an earlier mention that did not come before their row's."""
    found = []
    for at, token in enumerate(prompt):
        often = prompt.count(token)
        earlier = [p for p in range(at) if prompt[p] == token]
        lacks = any(source.get(p, at + 10**6) >= source.get(at, 0) for p in earlier)
        if at in source and lacks and often <= 8:
            found.append((often, at))
    return [at for _, at in sorted(found)]


def _shifts(host: Host, writer: Writer) -> dict[str, dict[str, float]]:
    """Moved near and far: the answer's distance from a cold one, with and without the turn."""
    oracle = Oracle(host.config["model"])
    document = writer.text(300)
    facts = {}
    for shift in (1, -1, 17, -17, 1000, -1000):
        header, rid = 1050 if shift < -100 else 50, f"shift{shift}-absorb"
        host.flush()
        host.run(writer.text(header) + document + writer.text(20), f"{rid}-donor")
        prompt = writer.text(header + shift) + document + writer.text(12)
        logprobs = {"return_logprob": True, "top_logprobs_num": VOCABULARY, "max_new_tokens": 1}
        got = host.run(prompt, rid, **logprobs)
        plan = host.plans(rid)[0]
        positions = [p for start, end, _ in plan["spans"] for p in range(start, end)]
        donors = plan["plan"]["source_rows"]
        still = {p: (0, donors[:, index]) for index, p in enumerate(positions)}
        tokens = torch.tensor(prompt)
        cold = oracle.prefill(tokens)[1].log_softmax(0)
        facts[str(shift)] = {
            "reused": plan["reused"],
            "kl": _divergence(cold, _logprobs(got)),
            "kl_not_turned": _divergence(cold, oracle.prefill(tokens, still)[1].log_softmax(0)),
        }
    return facts


def _moved(host: Host, prompt: list[int], rid: str, **options: Any) -> dict[str, Any]:
    logprobs = {"return_logprob": True, "top_logprobs_num": VOCABULARY, "max_new_tokens": 1}
    got = host.run(prompt, rid, **logprobs, **options)
    cold = host.exact(prompt, f"{rid}-cold", **logprobs)
    plan = host.plans(rid)[0]
    rows = host.rows(rid, len(prompt))["rows"][:, : len(prompt)].float()
    computed = host.rows(f"{rid}-cold", len(prompt))["rows"][:, : len(prompt)].float()
    positions = torch.cat([torch.arange(start, end) for start, end, _ in plan["spans"]])
    donors, deltas = plan["plan"]["source_rows"].float(), plan["plan"]["deltas"]
    facts = {
        **answer(got),
        "cold_cached": answer(cold)["cached"],
        "reused": plan["reused"],
        "deltas": sorted(set(deltas.tolist())),
        "latent_copied": torch.equal(rows[:, positions, :LATENT], donors[..., :LATENT]),
        "latent_equals_model": torch.equal(
            rows[0, positions, :LATENT], computed[0, positions, :LATENT]
        ),
        "key": _key_errors(rows[0, positions, LATENT:], computed[0, positions, LATENT:]),
        "key_not_turned": _key_errors(donors[0, :, LATENT:], computed[0, positions, LATENT:]),
    }
    moved = {
        int(position): (int(deltas[index]), donors[:, index])
        for index, position in enumerate(positions)
    }
    tokens = torch.tensor(prompt)
    facts["oracle"] = _against_oracle(
        Oracle(host.config["model"]), tokens, moved, (rows, got), (computed, cold)
    )
    return facts


def _key_errors(got: Tensor, wanted: Tensor) -> dict[str, float]:
    """Relative L2 error, and the largest error in ulps of bf16 taken at the pair's norm."""
    pairs = (wanted[:, 0::2].square() + wanted[:, 1::2].square()).sqrt()
    ulp = torch.exp2(torch.floor(torch.log2(pairs)) - 7).repeat_interleave(2, dim=1)
    return {
        "relative": float((got - wanted).norm() / wanted.norm()),
        "ulps": float(((got - wanted).abs() / ulp).max()),
    }


def _against_oracle(
    oracle: Oracle,
    tokens: Tensor,
    moved: dict[int, tuple[int, Tensor]],
    holed: tuple[Tensor, Any],
    cold: tuple[Tensor, Any],
) -> dict[str, float]:
    """Errors of the engine with holes, beside its errors on a full prefill, in the same unit."""
    oracle_rows, oracle_logits = oracle.prefill(tokens, moved)
    full_rows, full_logits = oracle.prefill(tokens)
    holes = torch.tensor([p for p in range(len(tokens)) if p not in moved])
    wanted, wanted_cold = oracle_logits.log_softmax(0), full_logits.log_softmax(0)
    return {
        "rows": _relative(holed[0][:, holes], oracle_rows[:, holes]),
        "rows_cold": _relative(cold[0][:, holes], full_rows[:, holes]),
        "logits": _difference(holed[1], wanted),
        "logits_cold": _difference(cold[1], wanted_cold),
        # What the test would miss if the oracle could not tell the two apart.
        "rows_apart": _relative(full_rows[:, holes], oracle_rows[:, holes]),
        "logits_apart": float((wanted - wanted_cold).norm() / VOCABULARY**0.5),
    }


def _relative(got: Tensor, wanted: Tensor) -> float:
    return float((got - wanted).norm() / wanted.norm())


def _difference(result: Any, wanted: Tensor) -> float:
    """Root mean square difference of the first token's log probabilities."""
    got = _logprobs(result)
    known = ~got.isnan()
    return float((got[known] - wanted[known]).square().mean().sqrt())


def _divergence(wanted: Tensor, got: Tensor) -> float:
    """Kullback-Leibler divergence of `got` from `wanted`, both log probabilities, in nats."""
    known = ~got.isnan()
    return float((wanted.exp() * (wanted - got))[known].sum())


def _logprobs(result: Any) -> Tensor:
    """Return the first token's log probabilities; a few may be missing (NaN)."""
    got = torch.full((VOCABULARY,), float("nan"))
    for logprob, token, _ in result["meta_info"]["output_top_logprobs"][0]:
        got[token] = logprob
    if int(got.isnan().sum()) > 8:
        raise AssertionError(f"the engine left out {int(got.isnan().sum())} logprobs")
    return got
