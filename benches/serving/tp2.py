"""Engines of one rank and of two -> whether two ranks plan the same and answer alike.

All engines get the same prompts: documents behind one header, then behind another, with reuse and
exactly. Two ranks share every request (``tp``) or serve different ones with the same weights
(``dp``, attention data parallelism). Where they share, every plan is dumped by each of them and
compared. The answers are compared with those of one rank, beside the distance of exact answers,
which is what splitting a product of matrices over two GPUs does by itself. Random weights.

    python benches/serving/tp2.py --model FOLDER --out benches/serving/results/tp2.json

``--device cpu`` runs the same on a machine without a GPU.
"""

from __future__ import annotations

import argparse
import inspect
import os
import platform
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import one_gpu
import torch
from common import Server, vocabulary
from irminsul.live.client import Reply, reply_from
from irminsul.live.compare import differences
from rows import Row, row, save, show

Answers = dict[str, list[Reply]]

FORMS = ("one", "tp", "dp")


def prompts(model: str, documents: int, length: int) -> list[dict[str, list[int]]]:
    """Return prompts that share a document behind other headers, one of the donor's length."""
    known = vocabulary(model)
    random = np.random.default_rng(0)

    def text(count: int) -> list[int]:
        return [int(t) for t in random.integers(known // 8, known, count)]

    shared = [text(length) for _ in range(documents)]
    return [
        {
            "donor": text(90) + body + text(20),
            "moved": text(131 + 7 * i) + body + text(30),
            "in place": text(90) + body + text(25),
        }
        for i, body in enumerate(shared)
    ]


def engine(arguments: argparse.Namespace, form: str, dump: str) -> Server:
    """Start an engine in one of `FORMS` whose plans are written to `dump`."""
    ranks = 1 if form == "one" else 2
    # A model this small computes faster than it moves; its requests' ids say move it.
    os.environ.update(IRMINSUL_TEST_DUMP_ROWS=dump, IRMINSUL_TEST_FORM="1")
    weights = list(Path(arguments.model).glob("*.safetensors"))
    options: dict[str, Any] = {
        "max_total_tokens": arguments.max_total_tokens,
        "tp_size": ranks,
        "load_format": "auto" if weights else "dummy",
    }
    if form == "dp":
        options |= {"dp_size": ranks, "enable_dp_attention": True}
    if arguments.device == "cpu":
        from irminsul.demo import cpu_host

        os.environ.pop("SGLANG_CPU_OMP_THREADS_BIND", None)
        os.environ.update(cpu_host.environment(ranks=ranks))
        options = cpu_host.engine_arguments(arguments.model, **options)
    else:
        options |= {
            "attention_backend": arguments.attention_backend,
            "mem_fraction_static": 0.85,  # ranks may share a GPU; the pool's size is given
            "cuda_graph_max_bs_decode": 8,
            # Collectives are NCCL's alone: what fuses them is no part of the question.
            "disable_custom_all_reduce": True,
            "enforce_disable_flashinfer_allreduce_fusion": True,
        }
    if arguments.one_gpu:
        options |= one_gpu.OPTIONS
    return Server(arguments.model, "irminsul", **options)


def ask(running: Server, ids: list[int], reuse: bool, apart: bool) -> Reply:
    # Ranks of attention data parallelism are `apart`: one does not know the other's text.
    known = inspect.signature(running.engine.generate).parameters
    field = "routed_dp_rank" if "routed_dp_rank" in known else "data_parallel_rank"
    pinned = {field: 0} if apart else {}
    answer = running.engine.generate(
        **pinned,
        rid=f"absorb-{uuid.uuid4().hex}",
        input_ids=ids,
        sampling_params={
            "temperature": 0,
            "max_new_tokens": 16,
            "ignore_eos": True,
            "custom_params": {"irminsul": reuse},
        },
        return_logprob=True,
        top_logprobs_num=20,
    )
    return reply_from(answer, 0.0, 0.0)


def serve(arguments: argparse.Namespace, form: str, dump: str) -> Answers:
    """Answer every prompt on a fresh engine."""
    running, apart = engine(arguments, form, dump), form == "dp"
    found: Answers = {"cold": [], "donor": [], "moved": [], "in place": []}
    try:
        for asked in prompts(arguments.model, arguments.documents, arguments.length):
            found["cold"].append(ask(running, asked["moved"], reuse=False, apart=apart))
            running.flush()
            for name, ids in asked.items():
                found[name].append(ask(running, ids, reuse=True, apart=apart))
    finally:
        running.stop()
    return found


def plans(dump: str, rank: int) -> list[dict[str, Any]]:
    return [torch.load(path) for path in sorted(Path(dump).glob(f"*-{rank}-plan.pt"))]


def equal_plans(dump: str) -> tuple[int, int, bool]:
    """Return how many plans rank 0 made, how many of them rank 1 made too, and equal donor rows."""
    first, second = plans(dump, 0), plans(dump, 1)
    names = ("source_slots", "target_slots", "deltas")
    equal = rows = 0
    for a, b in zip(first, second, strict=False):
        same = all(torch.equal(a[name], b[name]) for name in names)
        equal += same and a["requests"] == b["requests"]
        rows += torch.equal(a["source_rows"], b["source_rows"])
    return len(first), equal, len(first) == rows


def plan_rows(form: str, dump: str) -> list[Row]:
    """Compare the plans of both ranks; under attention data parallelism none is made twice."""
    if form != "tp":
        return []
    total, equal, alike = equal_plans(dump)
    # Without a plan nothing has been compared.
    bar = f"== {total or 1}"
    made = row("sglang.tp2", "plans", "plans equal on both ranks", equal, "1", bar=bar)
    return [made | {"samples": total, "donor_rows_bit_equal": alike}]


def answer_rows(form: str, case: str, one: Answers, two: Answers) -> list[Row]:
    """Compare the answers of two ranks with those of one, beside exact answers."""
    noise = differences(one["cold"], two["cold"])
    ours = differences(one[case], two[case])
    reused = [sum(reply.cached_tokens for reply in side[case]) for side in (one, two)]
    share = round(reused[1] / max(1, reused[0]), 4)
    beside = {"rival": "exact answers, two ranks to one", "samples": ours.answers}
    made = [
        row(f"sglang.{form}2", case, metric, float(f"{value:.4g}"), unit, **beside)
        | {"rival_value": float(f"{rival:.4g}")}
        for metric, value, rival, unit in (
            ("KL of the first token", ours.kl_most, noise.kl_most, "nats"),
            ("logprobs before a flip", ours.logprob_most, noise.logprob_most, "nats"),
            ("answers with other tokens", ours.flips, noise.flips, "1"),
        )
    ]
    kept = row(f"sglang.{form}2", case, "reused tokens, two ranks to one", share, "1", bar="== 1")
    return [kept | {"samples": ours.answers}, *made]


def write(arguments: argparse.Namespace, rows: list[Row]) -> None:
    """Write what is known so far, and print it."""
    import sglang

    name = torch.cuda.get_device_name() if arguments.device == "cuda" else platform.processor()
    machine = f"{1 if arguments.one_gpu else 2} x {name}, torch {torch.__version__}"
    for made in rows:
        made["case"] = f"{arguments.attention_backend}, {made['case'].rpartition(', ')[2]}"
    save(arguments.out, rows, machine=machine, sglang=sglang.__version__)
    show(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="folder with a config.json")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=6)
    parser.add_argument("--length", type=int, default=1500)
    parser.add_argument("--max-total-tokens", type=int, default=32768)
    parser.add_argument("--attention-backend", default="flashinfer")
    parser.add_argument("--forms", default="tp,dp", help="of two ranks: tp, dp")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--one-gpu", action="store_true", help="both ranks on the first GPU")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        if arguments.one_gpu:
            one_gpu.install(Path(folder) / "plugin")
        found: dict[str, Answers] = {}
        for form in ("one", *arguments.forms.split(",")):
            dump = Path(folder) / form
            dump.mkdir()
            began = time.perf_counter()
            found[form] = serve(arguments, form, str(dump))
            print(f"# {form}: {time.perf_counter() - began:.1f} s", flush=True)
            if form != "one":
                rows += plan_rows(form, str(dump))
                for case in ("moved", "in place"):
                    rows += answer_rows(form, case, found["one"], found[form])
                write(arguments, rows)


if __name__ == "__main__":
    main()
