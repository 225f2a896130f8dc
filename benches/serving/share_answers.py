"""Random weights that attention reaches -> whether requests that borrow answer as over moved rows.

Two engines: one moves rows, one lends them. Answers may part where two tokens are nearly as likely;
how far logprobs differ says what is rounding, and what a page of other text changes says whether
they would show a mistake. `share_storm` has the pool that is too small.

    python benches/serving/share_answers.py --out benches/serving/results/share_answers.json
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agreement import by_rounding, summary
from backend_engine import Engine
from backend_rows import USUAL_NOISE
from common import GPU_HEADS, Ids, Prompts, vocabulary
from rows import Row, row, save, show

TEXT, QUESTION, ANSWER = 1500, 48, 24
BAR_ID = "backend.2-answers"
CHECKS = {
    # SGLang's own sums and ownership checks, after every step.
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",
}


class Drawn:
    """Texts, and prompts over them at offsets of their own."""

    def __init__(self, model: str, texts: int) -> None:
        self._made = Prompts(TEXT, vocabulary(model), seed=3)
        self.texts = [self.fresh(TEXT) for _ in range(texts)]

    def fresh(self, count: int) -> list[int]:
        ids: Ids = self._made.fresh(count)
        return [int(token) for token in ids]

    def over(self, text: list[int], header: int) -> list[int]:
        return self.fresh(header) + text + self.fresh(QUESTION)


def asked(prompts: Sequence[list[int]], rid: str, **more: Any) -> list[dict[str, Any]]:
    """Return requests; the form of attention in their ids has every span moved that can be."""
    return [
        {"ids": ids, "rid": f"{rid}-absorb-{number}", "tokens": ANSWER} | more
        for number, ids in enumerate(prompts)
    ]


def compared(ours: list[Any], theirs: list[Any], usual: float, case: str) -> Row:
    """Return how answers over borrowed rows differ from `theirs`."""
    counts = summary(ours, theirs)
    return row(
        BAR_ID,
        case,
        "answers that differ from those over moved rows by rounding at most",
        counts["answers"] if by_rounding(counts, usual) else counts["equal"],
        f"of {counts['answers']}",
        bar=f"== {counts['answers']}",
        samples=counts["answers"],
        counts=counts,
        usual_noise=usual,
    )


def sessions(engines: dict[str, Engine], drawn: Drawn, count: int) -> list[Row]:
    """Sessions over one text, alone, at once, and with a page of the text changed."""
    text, copy, share = drawn.texts[0], engines["copy"], engines["share"]
    lender = asked([drawn.over(text, 101)], "lender")
    prompts = [drawn.over(text, 64 + 37 * n) for n in range(count)]

    def taken(engine: Engine, requests: list[Any], together: bool, first: Any = lender) -> Any:
        engine("flush")
        engine("answers", first, False)
        return engine("answers", requests, together)

    alone = taken(copy, asked(prompts, "s"), False)
    moved = taken(copy, asked(prompts, "s"), True)
    usual = max(USUAL_NOISE, summary(moved, alone)["noise"])
    rows = []
    for together, theirs in ((False, alone), (True, moved)):
        ours = taken(share, asked(prompts, "s"), together)
        case = f"{count} sessions over {TEXT} tokens{', at once' if together else ''}"
        rows.append(compared(ours, theirs, usual, case))
    # Both engines have seen the sessions: the next turn borrows what they computed, too.
    turns = [p + list(a["tokens"]) + drawn.fresh(30) for p, a in zip(prompts, moved, strict=True)]
    ours, theirs = (engine("answers", asked(turns, "t"), False) for engine in (share, copy))
    rows.append(compared(ours, theirs, usual, "their next turns"))
    other = text[: TEXT // 2] + drawn.fresh(64) + text[TEXT // 2 + 64 :]
    swapped = [p[: -QUESTION - TEXT] + other + p[-QUESTION:] for p in prompts]
    changed = taken(copy, asked(swapped, "c"), False, asked([drawn.over(other, 101)], "lender"))
    return [*rows, sensitive(summary(changed, alone), usual)]


def sensitive(counts: dict[str, Any], usual: float) -> Row:
    return row(
        "backend.answers-sensitive",
        "64 of the text's tokens changed",
        "largest difference of a logprob before answers part",
        counts["noise"],
        "nats",
        rival="the same requests at once instead of alone",
        rival_value=usual,
        bar="> 4 of the rival",
        samples=counts["answers"],
        counts=counts,
    )


def options(arguments: argparse.Namespace) -> dict[str, Any]:
    made: dict[str, Any] = {"model_path": arguments.model, "log_level": "warning"}
    if arguments.device == "cpu":
        from irminsul.demo import cpu_host

        made = cpu_host.engine_arguments(arguments.model, dtype="float32")
        for name in ("load_format", "skip_tokenizer_init", "grammar_backend", "random_seed"):
            made.pop(name, None)
    else:
        made |= {"mem_fraction_static": 0.9, "cuda_graph_max_bs_decode": 32}
    ours = {"attention_backend": "irminsul", "radix_cache_backend": "irminsul", "page_size": 64}
    return {**made, **ours, "max_total_tokens": arguments.pool, **json.loads(arguments.engine)}


def start(
    arguments: argparse.Namespace, made: dict[str, tuple[dict[str, Any], dict[str, str]]]
) -> dict[str, Engine]:
    """Start engines at the same time, each with arguments and variables of its own."""
    cpu: dict[str, str] = {}
    if arguments.device == "cpu":
        from irminsul.demo import cpu_host

        cpu = cpu_host.environment(page_size=64)
    engines = {}
    for place, (name, (more, environment)) in enumerate(made.items()):
        given = {**options(arguments), "port": 33_000 + 300 * place, **more}
        log = arguments.logs / f"share-{name}.log"
        variables = {**environment, **cpu, "IRMINSUL_TEST_FORM": "1"}
        engines[name] = Engine(name, given, ANSWER, log, **variables)
    for name, engine in engines.items():
        print(f"# {name} is up after {engine.wait()} s", flush=True)
    return engines


def parser(about: str, pool: int) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=about.splitlines()[0])
    made.add_argument("--model", help="folder of a checkpoint; a small random one without")
    made.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    made.add_argument("--out", type=Path, help="results file to write")
    made.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()))
    made.add_argument("--pool", type=int, default=pool, help="tokens")
    made.add_argument("--engine", default="{}", help="JSON of engine arguments")
    return made


def parsed(given: argparse.ArgumentParser) -> argparse.Namespace:
    """Return the arguments, with a model in any case."""
    arguments = given.parse_args()
    if not arguments.model:
        from irminsul.demo.model import TinyModel

        folder = tempfile.mkdtemp(prefix="irminsul-bench-")
        sizes = {"layers": 4, **GPU_HEADS}
        arguments.model = str(TinyModel(vocab_size=4096, **sizes).write(folder))
    return arguments


def main() -> int:
    made = parser(__doc__ or "", 64 * 1023)
    made.add_argument("--sessions", type=int, default=12)
    arguments = parsed(made)
    share = {"IRMINSUL_REUSE": "share", **CHECKS}
    engines = start(arguments, {"copy": ({}, {"IRMINSUL_REUSE": "copy"}), "share": ({}, share)})
    rows = list[Row]()
    try:
        rows += sessions(engines, Drawn(arguments.model, 4), arguments.sessions)
        if arguments.out:
            save(arguments.out, rows)
    finally:
        for engine in engines.values():
            engine.stop()
        show(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
