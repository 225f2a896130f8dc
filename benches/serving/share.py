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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import share_profile
from common import Clock, Ids, Prompts, Reply, vocabulary
from rows import Row, ratio_row, row, save, show
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
    case = f"{arguments.sessions} sessions, {arguments.text} tokens"
    moved = {mode: [reply.first for reply in replies] for mode, replies in taken.single.items()}
    shorter = partial(ratio_row, "backend.2", rival="moved rows")
    alone = shorter(case, moved["share"], other=moved["copy"], bar="<= 1.00, within spread")
    together = [
        shorter(
            f"{case} at once",
            sorted(reply.first for reply in share.replies),
            other=sorted(reply.first for reply in copy.replies),
            bar="",
        )
        for share, copy in zip(taken.held["share"], taken.held["copy"], strict=True)
    ]
    slots, answers, *rest = _held_rows(taken, arguments, partial(row, "backend.2", case))
    return [slots, answers, alone, *together, *rest]


def _held_rows(taken: Samples, arguments: argparse.Namespace, of: Callable[..., Row]) -> list[Row]:
    """Return what sessions hold, whether they answer alike, how long they take, what was cached."""
    copy, share = taken.held["copy"], taken.held["share"]
    layers = json.loads((Path(arguments.model) / "config.json").read_text())["num_hidden_layers"]
    slots = {mode: max(one.slots for one in held) for mode, held in taken.held.items()}
    size = {mode: round(count * layers * ROW_BYTES / 1e9, 3) for mode, count in slots.items()}
    tokens = [[reply.tokens for reply in held[0].replies] for held in (copy, share)]
    agreed, every = same(*tokens)
    noise, _ = same(tokens[0], taken.alone)
    seconds = [statistics.median(one.seconds for one in held) for held in (share, copy)]
    least = {mode: min(reply.cached for reply in got) for mode, got in taken.single.items()}
    moved = {"rival": "moved rows", "samples": len(copy)}
    less = round(slots["copy"] / slots["share"], 2)
    held = of("KV held by all sessions, of the copies'", less, "times less", **moved)
    equal = of(
        "answer tokens equal to those over moved rows", agreed, f"of {every}", rival_value=noise
    )
    took = of(f"time for {ANSWER} tokens of all sessions", round(seconds[0], 3), "s", **moved)
    cached = of("cached tokens of a prompt, least", least["share"], "tokens", **moved)
    return [
        held | {"rival_value": 1.0, "bar": ">= 5", "slots": slots, "gigabytes": size},
        equal
        | {
            "rival": "moved rows, each session alone",
            "bar": ">= the rival" if arguments.device != "cpu" else f"== {every}",
            "samples": arguments.sessions,
        },
        took | {"rival_value": round(seconds[1], 3)},
        cached | {"rival_value": least["copy"], "samples": len(taken.single["copy"])},
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
