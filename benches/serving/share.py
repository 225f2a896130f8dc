"""Sessions over one long text at different offsets -> KV held and time to first token.

Two engines on the same device, one that moves reused rows and one with ``IRMINSUL_REUSE=share``.
Both have seen the text once. Then single requests are timed in turn, and all sessions decode
together while the slots that they hold are watched. Both engines must give the same answers; how
far that goes in bf16 says the moving engine itself, alone and in company.

    python benches/serving/share.py --model FOLDER --out benches/serving/results/share.json
    python benches/serving/share.py --device cpu --text 1500 --sessions 4 --out FILE

``--profile FILE`` says afterwards where the time of single requests goes, see `share_profile`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import share_profile
from common import Clock, Ids, Prompts, Reply, vocabulary
from rows import Row, ratio_row, save, show
from share_engine import ANSWER, MODES, Engine, Held

ROW_BYTES = 576 * 2  # of one token in one layer, bf16
QUESTION = 48


class Sessions:
    """Draws prompts over one text."""

    def __init__(self, arguments: argparse.Namespace, seed: int) -> None:
        self._made = Prompts(arguments.text, vocabulary(arguments.model), seed)
        self._count = arguments.sessions
        self.text = self._made.fresh(arguments.text)
        self._lender = self.over(101)

    def lender(self) -> Ids:
        return self._lender

    def over(self, header: int) -> Ids:
        parts = self._made.fresh(header), self.text, self._made.fresh(QUESTION)
        return np.concatenate(parts)

    def all(self) -> list[Ids]:
        """Return one prompt a session, each with the text at an offset of its own."""
        return [self.over(64 + 37 * number) for number in range(self._count)]


def lend(servers: dict[str, Engine], modes: Sequence[str], drawn: Sessions) -> None:
    """Empty the caches and let them see the text once."""
    for mode in modes:
        servers[mode]("flush")
        servers[mode]("serve", drawn.lender())


@dataclass
class Samples:
    """What was taken so far: single requests, sessions, and the moving engine's answers alone."""

    single: dict[str, list[Reply]] = field(default_factory=lambda: {mode: [] for mode in MODES})
    held: dict[str, list[Held]] = field(default_factory=lambda: {mode: [] for mode in MODES})
    alone: list[list[int]] = field(default_factory=list)


def warm(servers: dict[str, Engine], arguments: argparse.Namespace) -> None:
    """Let both engines do once what is measured: kernels are compiled, memory is there."""
    drawn = Sessions(arguments, seed=arguments.rounds)
    lend(servers, MODES, drawn)
    for mode in MODES:
        for header in (60, 99):
            servers[mode]("serve", drawn.over(header), "", 3)


def measure(
    servers: dict[str, Engine], arguments: argparse.Namespace, turn: int, taken: Samples
) -> None:
    """Take one round of samples."""
    drawn = Sessions(arguments, seed=turn)
    order = MODES if turn % 2 else MODES[::-1]
    lend(servers, MODES, drawn)
    for number in range(arguments.samples):
        prompt = drawn.over(50 + 41 * number)
        for mode in order if number % 2 else order[::-1]:
            taken.single[mode].append(servers[mode]("serve", prompt))
    prompts = drawn.all()
    lend(servers, MODES, drawn)
    for mode in order:
        taken.held[mode].append(servers[mode]("hold", prompts))
    if not taken.alone:
        lend(servers, ("copy",), drawn)
        taken.alone = [servers["copy"]("serve", p, "", ANSWER).tokens for p in prompts]


def profile(servers: dict[str, Engine], arguments: argparse.Namespace) -> dict[str, Any]:
    """Return where the time of single requests goes in both engines."""
    drawn = Sessions(arguments, seed=arguments.rounds + 1)
    lend(servers, MODES, drawn)
    prompts = [drawn.over(50 + 41 * number) for number in range(8)]
    return {mode: servers[mode]("profile", prompts) for mode in MODES}


def same(one: list[list[int]], other: list[list[int]]) -> tuple[int, int]:
    """Return how many tokens agree before the first difference of each answer, and of how many."""
    agreed = 0
    for mine, theirs in zip(one, other, strict=True):
        differ = [a != b for a, b in zip(mine, theirs, strict=True)]
        agreed += differ.index(True) if True in differ else len(mine)
    return agreed, sum(map(len, one))


def rows_of(taken: Samples, arguments: argparse.Namespace) -> list[Row]:
    single, held = taken.single, taken.held
    case = f"{arguments.sessions} sessions, {arguments.text} tokens"
    layers = json.loads((Path(arguments.model) / "config.json").read_text())["num_hidden_layers"]
    size = layers * ROW_BYTES / 1e9
    slots = {mode: max(one.slots for one in held[mode]) for mode in MODES}
    tokens = {mode: [reply.tokens for reply in held[mode][0].replies] for mode in MODES}
    agreed, of = same(tokens["copy"], tokens["share"])
    noise, _ = same(tokens["copy"], taken.alone)
    samples = len(single["copy"])
    common = {"bar_id": "backend.2", "case": case}
    shorter = ratio_row(
        "backend.2",
        case,
        [reply.first for reply in single["share"]],
        "moved rows",
        [reply.first for reply in single["copy"]],
        "<= 1.00, within spread",
    )
    together = [
        ratio_row(
            "backend.2",
            f"{case} at once",
            sorted(reply.first for reply in held["share"][turn].replies),
            "moved rows",
            sorted(reply.first for reply in held["copy"][turn].replies),
            "",
        )
        for turn in range(len(held["copy"]))
    ]
    return [
        common
        | {
            "metric": "KV held by all sessions, of the copies'",
            "value": round(slots["copy"] / slots["share"], 2),
            "unit": "times less",
            "rival": "moved rows",
            "rival_value": 1.0,
            "bar": ">= 5",
            "samples": len(held["copy"]),
            "slots": slots,
            "gigabytes": {mode: round(slots[mode] * size, 3) for mode in MODES},
        },
        common
        | {
            "metric": "answer tokens equal to those over moved rows",
            "value": agreed,
            "unit": f"of {of}",
            "rival": "moved rows, each session alone",
            "rival_value": noise,
            "bar": ">= the rival" if arguments.device != "cpu" else f"== {of}",
            "samples": arguments.sessions,
        },
        shorter | {"samples": samples},
        *together,
        common
        | {
            "metric": f"time for {ANSWER} tokens of all sessions",
            "value": round(statistics.median(one.seconds for one in held["share"]), 3),
            "unit": "s",
            "rival": "moved rows",
            "rival_value": round(statistics.median(one.seconds for one in held["copy"]), 3),
            "bar": None,
            "samples": len(held["copy"]),
        },
        common
        | {
            "metric": "cached tokens of a prompt, least",
            "value": min(reply.cached for reply in single["share"]),
            "unit": "tokens",
            "rival": "moved rows",
            "rival_value": min(reply.cached for reply in single["copy"]),
            "bar": None,
            "samples": samples,
        },
    ]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="folder with a config.json; random weights")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, help="results file to write")
    parser.add_argument("--text", type=int, default=30_000, help="tokens that all sessions share")
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--samples", type=int, default=12, help="single requests of one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=600, help="no round begins after these")
    parser.add_argument("--profile", type=Path, help="file for where the time goes")
    parser.add_argument("--engine", default="{}", help="JSON of engine arguments")
    arguments = parser.parse_args()
    if arguments.device == "cpu" and not arguments.model:
        from irminsul.demo.model import TinyModel

        arguments.model = str(TinyModel().write(tempfile.mkdtemp(prefix="irminsul-bench-")))
    if not arguments.model:
        parser.error("--model is needed on a GPU")
    return arguments


def main() -> int:
    arguments = parse()
    servers = {mode: Engine(arguments, mode) for mode in MODES}
    try:
        for server in servers.values():
            print(server.wait(), flush=True)
        warm(servers, arguments)
        taken, clock = Samples(), Clock(arguments.seconds)
        for turn in range(arguments.rounds):
            if clock.goes_on(turn, least=1):
                measure(servers, arguments, turn, taken)
                rows = rows_of(taken, arguments)
                if arguments.out:
                    save(arguments.out, rows)
        show(rows)
        if arguments.profile:
            share_profile.save(profile(servers, arguments), arguments.profile)
    finally:
        for server in servers.values():
            server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
