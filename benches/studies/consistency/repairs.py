"""Reordered documents of a reader -> results/repairs.json: repairs that the engine does not offer.

Must not know the engine. Usage:
    python benches/studies/consistency/repairs.py --weights READER/weights
    [--samples 1250 --first 0 --seconds 100 --sums FILE]; --join FILE ... adds up several runs

They choose rows anew in each layer, or by what the question attends to; the model runs densely.
Documents are taken over whole.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "models"))

import model as small  # noqa: E402
import numpy as np  # noqa: E402
import scenarios  # noqa: E402
import tasks  # noqa: E402
import torch  # noqa: E402
from dense import Dense, States  # noqa: E402
from irminsul.integrations.transformers import RowPiece, Span  # noqa: E402
from irminsul.integrations.transformers.mentions import new_mentions  # noqa: E402
from torch import Tensor  # noqa: E402


class Case:
    """One trial: its states under full prefill, those taken over, and its questions."""

    def __init__(self, model: Dense, trial: scenarios.Trial) -> None:
        self.model, self.questions = model, trial.questions
        device = model.model.device
        self.tokens = torch.tensor(trial.context, device=device)
        self.spans = whole_documents(trial.history[0], trial.context)
        donor = model.serve(torch.tensor(trial.history[0], device=device))
        self.full = model.serve(self.tokens)
        self.old = [torch.zeros_like(state) for state in self.full]
        self.reused = torch.zeros(len(self.tokens), dtype=torch.bool, device=device)
        for span in self.spans:
            self.reused[span.target : span.end] = True
            source = span.pieces[0].start
            for old, state in zip(self.old, donor, strict=True):
                old[span.target : span.end] = state[source : source + span.length]

    def serve(self, new: Tensor) -> States:
        """Compute the rows of `new`, [tokens] bool, in all layers."""
        return self.model.serve(self.tokens, self.old, [new] * 4)

    def most(self, score: Tensor, among: Tensor, share: float) -> Tensor:
        """Holes, and the rows of `among` with the highest score, a share of what is reused."""
        count = min(round(share * int(self.reused.sum())), int(among.sum()))
        chosen = ~self.reused
        chosen[torch.where(among, score, -1.0).topk(count).indices] = True
        return chosen

    def deviation(self, layer: int, states: States) -> Tensor:
        """How far the rows of a layer lie from those that would be taken over."""
        module, at = self.model.model.model.layers[layer], torch.arange(len(self.tokens))
        exact = self.model.rows(module, states[layer], at.to(self.tokens.device))[2]
        moved = self.model.rows(module, self.old[layer], at.to(self.tokens.device))[2]
        return (moved - exact).norm(dim=1) / exact.norm(dim=1)

    def right(self, states: States) -> dict[str, bool]:
        asked = [[*q.prompt, *q.answer[:-1]] for q in self.questions]
        scores, _ = self.model.ask(states, asked)
        found = [part.argmax(-1).tolist() for part in scores]
        return {
            q.kind: tuple(f[len(q.prompt) - 1 :]) == q.answer
            for q, f in zip(self.questions, found, strict=True)
        }


def whole_documents(before: Sequence[int], after: Sequence[int]) -> list[Span]:
    """Spans of the documents that both prompts hold."""

    def documents(prompt: Sequence[int]) -> dict[tuple[int, ...], int]:
        edges = [i for i, t in enumerate(prompt) if t == tasks.DOC]
        pairs = itertools.pairwise([*edges, len(prompt)])
        return {tuple(prompt[first:end]): first for first, end in pairs}

    known = documents(before)
    return [
        Span(at, (RowPiece(1, known[text], len(text)),), at - known[text], 1, 1)
        for text, at in sorted(documents(after).items(), key=lambda pair: pair[1])
        if text in known
    ]


Outcome = tuple[str, States, float]
"""Name of a repair, the states it leaves, and the share of rows times layers that it computed."""


def repairs(case: Case) -> Iterator[Outcome]:
    """Full prefill, reuse as it is, and every repair."""
    yield "full prefill", case.full, 1.0
    holes = ~case.reused
    plain = case.serve(holes)
    yield "irminsul", plain, _share(holes)
    for share in (0.01, 0.02, 0.05):
        new = _relinked(case, share)
        yield f"relink {share:.0%}", case.serve(new), _share(new)
    for share, rounds in ((0.01, 1), (0.02, 1), (0.05, 1), (0.02, 3)):
        new, states = _asked(case, plain, share, rounds)
        yield f"asked {share:.0%}, {rounds} rounds", states, _share(new)
    for first, second in ((1.0, 0.05), (0.5, 0.05), (0.3, 0.05), (0.15, 0.05)):
        yield (f"gradual {first:.0%}, {second:.0%}", *_gradual(case, first, second))


def _relinked(case: Case, share: float) -> Tensor:
    tokens = case.tokens.cpu().numpy().astype(np.uint32)
    found = new_mentions(tokens, [], case.spans)
    new = ~case.reused
    new[torch.from_numpy(found[: round(share * int(case.reused.sum()))])] = True
    return new


def _asked(case: Case, plain: States, share: float, rounds: int) -> tuple[Tensor, States]:
    """Compute again what the questions attend to most, then what they attend to now."""
    new, states = ~case.reused, plain
    for _ in range(rounds):
        _, paid = case.model.ask(states, [q.prompt for q in case.questions])
        new = new | case.most(paid, case.reused & ~new, share / rounds)
        states = case.serve(new)
    return new, states


def _gradual(case: Case, first: float, second: float) -> tuple[States, float]:
    """Fewer rows layer by layer, those whose rows deviate most so far; after CacheBlend.

    All rows pass the first layer, `first` of them the second one, `second` the rest.
    """
    holes, everything = ~case.reused, torch.ones_like(case.reused)
    early = case.most(case.deviation(1, case.full), case.reused, first)
    half = case.model.serve(case.tokens, case.old, [everything, early, holes, holes])
    late = case.most(case.deviation(2, half), case.reused & early, second)
    states = case.model.serve(case.tokens, case.old, [everything, early, late, late])
    return states, (1.0 + _share(early) + 2 * _share(late)) / 4


def _share(new: Tensor) -> float:
    return float(new.float().mean())


@torch.inference_mode()
def run(options: argparse.Namespace) -> dict[str, Any]:
    """Sums over trials: {repair: {"computed": ..., kind: right answers}}."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Dense(small.load(options.weights, torch.float32).to(device), torch.float32)
    maker = scenarios.Maker(options.tokens, options.documents, tasks.Filler(), reading=True)
    sums: dict[str, dict[str, float]] = {}
    done, begin = 0, time.monotonic()
    for index in range(options.first, options.first + options.samples):
        case = Case(model, maker.trial("reordered", index))
        for name, states, share in repairs(case):
            cell = sums.setdefault(name, dict.fromkeys(("computed", *tasks.KINDS), 0.0))
            cell["computed"] += share
            for kind, right in case.right(states).items():
                cell[kind] += right
        done += 1
        if time.monotonic() - begin > options.seconds:
            break
    return {"samples": done, "sums": sums}


def rows(parts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Result rows of several runs over different trials."""
    from tally import interval, row

    total = sum(part["samples"] for part in parts)
    made = []
    for name in parts[0]["sums"]:
        cells = [part["sums"][name] for part in parts]
        share = 100 * sum(cell["computed"] for cell in cells) / total
        for kind in tasks.KINDS:
            hits = round(sum(cell[kind] for cell in cells))
            low, high = interval(hits, total)
            case, limits = f"reordered, {kind}, {name}", (100 * low, 100 * high)
            found = row(None, case, "accuracy", 100 * hits / total, "%", total, limits)
            made.append({**found, "computed": float(f"{share:.4g}")})
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=1250)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--documents", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--sums", type=Path, help="write sums there, for `--join`")
    parser.add_argument("--join", type=Path, nargs="+", help="sums of other runs; nothing is run")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "repairs.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.join:
        parts = [json.loads(path.read_text()) for path in options.join]
    else:
        parts = [run(options)]
    if options.sums:
        options.sums.write_text(json.dumps(parts[0]))
        return
    from run import as_text

    cuda = torch.cuda.is_available()
    name = torch.cuda.get_device_name() if cuda else f"{platform.machine()} CPU"
    command = "python benches/studies/consistency/repairs.py " + " ".join(sys.argv[1:])
    options.out.write_text(as_text(f"{name}, torch {torch.__version__}", command, rows(parts)))


if __name__ == "__main__":
    main()
