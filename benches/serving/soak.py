"""Minutes of mixed load on a pool far too small for it -> leaks, wrong tokens, and signs of life.

Clients send prompts made of documents that keep coming back, some of them aborted on the way, and
between them bystanders: fixed prompts in exact mode at temperature 0, whose answers were taken
beforehand on the idle engine. From time to time everybody stops, so that SGLang's own idle check
can count its pool: it ends the scheduler on a leak. ``--backend stock`` sends the same to SGLang's
own cache: on a GPU that says how far rounding alone carries an answer.

    python benches/serving/soak.py --minutes 60 --out benches/serving/results/soak_cpu.json
    python benches/serving/soak.py --device cuda --minutes 7 --backend stock --out stock.json
    python benches/serving/soak.py --device cuda --minutes 7 --out irminsul.json
    python benches/serving/soak.py --compare irminsul.json stock.json --out soak_gpu.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import plans
from bystanders import ANSWER, BEST, Bystanders, compared
from common import Ids, Server
from rows import Row, row, save, show
from soak_engine import VOCABULARY, described, engine, memory, rivals


@dataclass
class Soak:
    """The load, and what has been seen of it."""

    server: Server
    random: random.Random
    scale: int
    counts: Counter[str] = field(default_factory=Counter)
    documents: list[Ids] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bystanders = Bystanders(self._exact, VOCABULARY)

    def text(self, low: int, high: int) -> Ids:
        count = self.random.randint(low, high)
        return np.array([self.random.randrange(2, VOCABULARY) for _ in range(count)])

    def prepare(self, wrong_row: Path | None) -> None:
        """Draw the documents, and take the bystanders' answers on the idle engine."""
        self.documents = [self.text(100, 180 * self.scale) for _ in range(8)]
        # Short, so that every row weighs: one wrong one of forty moves logprobs beyond rounding.
        for _ in range(8):
            self.server.run(self.bystanders.add(self.text(24, 48)))
        # Only flashinfer's plans can be made to name a wrong row.
        row_file = wrong_row if plans.counted() else None
        self.server.run(self.bystanders.spoil(np.random.default_rng(0), row_file))

    async def client(self, end: float) -> None:
        while time.monotonic() < end:
            kind = self.random.random()
            if kind < 0.25:
                await self.bystanders.check(self.random.randrange(len(self.bystanders.known)))
            else:
                await self._moved(abort=kind > 0.85)

    async def _exact(self, ids: Ids) -> tuple[dict[str, Any], list[int]]:
        wanted = {"return_logprob": True, "top_logprobs_num": BEST}
        return await self._send(ids, ANSWER, {"irminsul": False}, **wanted)

    async def _moved(self, *, abort: bool) -> None:
        ids = self.text(20, 60)
        for _ in range(self.random.randint(1, 3)):
            ids = np.concatenate([ids, self.random.choice(self.documents), self.text(2, 12)])
        # On a GPU a model this small computes faster than it moves: such ids say move it.
        form = self.random.choice(("absorb", "mha"))
        rid = f"soak-{form}-{time.monotonic_ns()}"
        sent = asyncio.ensure_future(
            self._send(ids, self.random.randint(1, 40), None, rid=rid, stream=True)
        )
        if abort:
            await asyncio.sleep(self.random.random() * 0.5)
            self.server.engine.tokenizer_manager.abort_request(rid)
        try:
            meta, tokens = await sent
        except (ValueError, asyncio.CancelledError):  # aborted before it was scheduled
            self.counts["aborted"] += 1
            return
        ended = (meta.get("finish_reason") or {}).get("type")
        self.counts["aborted" if ended == "abort" else "served"] += 1
        self.counts["reused"] += int(meta.get("cached_tokens", 0))
        self.counts["prompt"] += int(meta.get("prompt_tokens", 0))
        self.counts["impossible"] += meta.get("cached_tokens", 0) >= max(1, len(ids))
        self.counts["outside_vocabulary"] += any(not 0 <= t < VOCABULARY for t in tokens)

    async def _send(
        self, ids: Ids, tokens: int, params: Any, **fields: Any
    ) -> tuple[dict[str, Any], list[int]]:
        from sglang.srt.managers.io_struct import GenerateReqInput

        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        if params is not None:
            sampling["custom_params"] = params
        request = GenerateReqInput(input_ids=ids.tolist(), sampling_params=sampling, **fields)
        meta: dict[str, Any] = {}
        out: list[int] = []
        async for answer in self.server.engine.tokenizer_manager.generate_request(request, None):
            meta, out = answer["meta_info"], list(answer["output_ids"])
        return meta, out

    def forms(self) -> list[Row]:
        """Compare both forms of attention over holes with computing everything, at delta 0.

        The answers are one token's twenty best logprobs; the unit is how far two ways of SGLang's
        own are apart: all at once, and behind an exact prefix.
        """
        found = []
        for holes in (2, 5, 9):
            ids = self.text(6000, 6000)
            whole = self._logprobs(ids, None, {"irminsul": False})
            noise = _apart(whole, self._logprobs(ids, None, {"irminsul": False}))
            self._logprobs(ids, None, None)
            for form in ("absorb", "mha"):
                moved = self._logprobs(ids, f"holes{holes}-{form}-{time.monotonic_ns()}", None)
                found.append(
                    row(
                        "sglang.forms",
                        f"{form}, {holes} holes, {moved['cached']} of 6000 moved",
                        "largest difference of logprobs to computing everything",
                        round(_apart(whole, moved), 4),
                        "nats",
                        rival="SGLang's prefix hit",
                        rival_value=round(noise, 4),
                        bar="<= 0.1",
                        samples=20,
                    )
                )
        return found

    def _logprobs(self, ids: Ids, rid: str | None, params: Any) -> dict[str, Any]:
        meta, _ = self.server.run(
            self._send(ids, 1, params, rid=rid, return_logprob=True, top_logprobs_num=20)
        )
        best = {int(token): float(value) for value, token, *_ in meta["output_top_logprobs"][0]}
        return {"best": best, "cached": int(meta.get("cached_tokens", 0))}

    def idle(self) -> None:
        """Leave the scheduler alone for long enough to count its pool; it dies of a leak."""
        time.sleep(3.0)
        self.server.run(self._send(self.text(10, 20), 1, None))
        self.counts["idle_checks"] += 1


def _apart(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the largest difference of logprobs over the tokens that both name."""
    shared = one["best"].keys() & other["best"].keys()
    missing = 1e9 if len(shared) < 10 else 0.0
    return max(missing, *(abs(one["best"][token] - other["best"][token]) for token in shared))


def rows(soak: Soak, case: str, memory_before: float, memory_after: float) -> list[Row]:
    counts, bystanders = soak.counts, soak.bystanders
    found = [
        ("wrong answers to bystanders", bystanders.wrong(), "1", "== 0"),
        ("idle checks passed", counts["idle_checks"], "1", ">= 1"),
        ("answers with impossible counts", counts["impossible"], "1", "== 0"),
        ("tokens outside the vocabulary", counts["outside_vocabulary"], "1", "== 0"),
        ("growth of resident memory", round(memory_after - memory_before, 1), "MiB", "<= 200"),
    ]
    samples = counts["served"] + counts["aborted"] + len(bystanders.apart)
    made = [
        row("sglang.7", case, metric, value, unit, bar=bar, samples=samples)
        for metric, value, unit, bar in found
    ]
    made[0] |= {"counts": dict(sorted(counts.items())), "bystanders": bystanders.facts()}
    made[0] |= {"decode_plans": plans.counted()}
    return made


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--backend", choices=("irminsul", "stock"), default="irminsul")
    parser.add_argument("--attention-backend", default="flashinfer", help="on a GPU")
    parser.add_argument("--page-size", type=int, default=1, help="on a GPU")
    parser.add_argument(
        "--forms",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="on a GPU, first compare both forms of attention with computing everything",
    )
    parser.add_argument(
        "--plans",
        choices=("count", "wait"),
        help="of flashinfer on a GPU: count plans that overtake the last one, or let them wait",
    )
    parser.add_argument("--rivals", type=int, default=0, help="processes that fight for the GPU")
    parser.add_argument("--engine", default="{}", help="more engine arguments, as JSON")
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--compare",
        nargs="+",
        type=Path,
        help="start nothing: set results side by side, irminsul's, a control's, and any more",
    )
    return parser.parse_args()


def started(arguments: argparse.Namespace) -> tuple[Soak, Path | None]:
    """Start the engine; return the load for it, and the file that names a wrong row, if any."""
    wrong_row = None
    if arguments.plans:
        wrong_row = plans.install(Path(tempfile.mkdtemp()), arguments.plans == "wait")
    model, options = engine(arguments.device, arguments.attention_backend, arguments.page_size)
    server = Server(model, arguments.backend, **{**options, **json.loads(arguments.engine)})
    scale = 1 if arguments.device == "cpu" else 8
    return Soak(server, random.Random(arguments.seed), scale), wrong_row


def run(arguments: argparse.Namespace) -> tuple[list[Row], bool]:
    """Return what the soak found, and whether all of it is as it must be."""
    soak, wrong_row = started(arguments)
    server, ours = soak.server, arguments.backend == "irminsul"
    made = soak.forms() if ours and arguments.device == "cuda" and arguments.forms else []
    for found in made:
        print({name: found[name] for name in ("case", "value", "rival_value")}, flush=True)
    # Whatever the forms have drawn: both caches get the same prompts.
    soak.random.seed(arguments.seed)
    soak.prepare(wrong_row)
    began = time.monotonic()
    end, before = began + arguments.minutes * 60, 0.0

    async def everyone(until: float) -> None:
        await asyncio.gather(*(soak.client(until) for _ in range(arguments.clients)))

    while (now := time.monotonic()) < end:
        with rivals(arguments.rivals):
            server.run(everyone(min(end, now + max(20.0, arguments.minutes * 6))))
        soak.idle()
        before = before or memory(server)
        minutes = f"{(time.monotonic() - began) / 60:.1f} min"
        print(minutes, {**soak.counts, **soak.bystanders.facts(), **plans.counted()}, flush=True)
        case = f"{described(arguments)}: {minutes} of mixed load"
        found = rows(soak, case, before, memory(server))
        save(arguments.out, made + found)
    server.stop()
    return made + found, not any(row["value"] for row in found if row["bar"] == "== 0")


def main() -> int:
    arguments = parsed()
    if arguments.compare:
        found = compared(*arguments.compare)
        show(found)
        made = json.loads(arguments.compare[0].read_text())
        save(arguments.out, found, machine=made["machine"], command=made["command"])
        return 0
    return 0 if run(arguments)[1] else 1


if __name__ == "__main__":
    sys.exit(main())
