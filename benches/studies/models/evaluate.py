"""Trained weights -> results/model.json: answers of full prefill on worlds that training never saw.

Must not know caches. Usage: python benches/studies/models/evaluate.py [--samples 1250] [--check]
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import Any

import model as small
import numpy as np
import tasks
import torch

HERE = Path(__file__).parent
BARS = {"single": ">= 95", "hop2": ">= 85"}


@torch.inference_mode()
def right(model: Any, rows: list[tuple[list[int], tuple[int, ...]]]) -> list[bool]:
    """Whether the greedy answer to each prompt is the expected one.

    One pass over prompt and expected answer decides it: greedy decoding follows the expected answer
    exactly when every token of it is the most likely one after those before.
    """
    longest = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.int64)
    for index, (prompt, answer) in enumerate(rows):
        ids[index, : len(prompt) + len(answer)] = torch.tensor([*prompt, *answer])
    ids = ids.to(model.device)
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    found = []
    for index, (prompt, answer) in enumerate(rows):
        behind = hidden[index, len(prompt) - 1 : len(prompt) + len(answer) - 1]
        found.append(model.lm_head(behind).argmax(-1).tolist() == list(answer))
    return found


def samples(index: int, options: argparse.Namespace, filler: tasks.Filler) -> Any:
    """One world, one prompt of each kind: (kind, prompt, answer)."""
    rng = np.random.default_rng([7, index])
    shape = tasks.Shape(
        options.tokens,
        options.documents,
        len(options.kinds),
        distractors=0.1,
        names=options.names,
        backwards=options.reading,
    )
    mix = dict.fromkeys(options.kinds, 1.0)
    held_out = not options.trained_pairs
    world = tasks.make_world(rng, filler, shape, mix, held_out=held_out, each=options.kinds)
    context = np.concatenate([[tasks.BOS], *world.documents]).tolist()
    return [(q.kind, [*context, *q.prompt], q.answer) for q in world.questions]


def accuracy(model: Any, options: argparse.Namespace) -> dict[str, float]:
    """Per cent of right answers by kind."""
    filler = tasks.Filler()
    hits: dict[str, list[bool]] = {kind: [] for kind in options.kinds}
    for first in range(0, options.samples, options.batch):
        last = min(options.samples, first + options.batch)
        worlds = [samples(i, options, filler) for i in range(first, last)]
        for kind, row in zip(options.kinds, zip(*worlds, strict=True), strict=True):
            hits[kind] += right(model, [(prompt, answer) for _, prompt, answer in row])
    return {kind: 100 * sum(values) / len(values) for kind, values in hits.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, default=HERE / "weights")
    parser.add_argument("--samples", type=int, default=1250)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--documents", type=int, default=24)
    parser.add_argument("--names", type=int, default=len(tasks.NAMES))
    parser.add_argument("--kinds", nargs="+", choices=tasks.KINDS, default=tasks.KINDS)
    parser.add_argument(
        "--trained-pairs", action="store_true", help="ask for pairs like training's"
    )
    parser.add_argument(
        "--reading", action="store_true", help="chains are told from their end to their start"
    )
    parser.add_argument("--batch", type=int, default=25)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "model.json")
    parser.add_argument("--check", action="store_true", help="32 short samples")
    if "--check" in sys.argv:
        parser.set_defaults(samples=32, tokens=512, documents=6, batch=4)
        parser.set_defaults(out=Path("build/studies/model.json"))
    options = parser.parse_args()
    if not (options.weights / "config.json").exists():
        parser.error(f"no weights in {options.weights}: see README.md")
    torch.set_num_threads(1)
    cuda = torch.cuda.is_available()
    name = torch.cuda.get_device_name() if cuda else f"{platform.machine()} CPU"
    model = small.load(options.weights, torch.bfloat16 if cuda else torch.float32)
    model.config._attn_implementation = small.ATTENTION
    found = accuracy(model.to("cuda" if cuda else "cpu"), options)
    rows = [_row(kind, value, options) for kind, value in found.items()]
    result = {
        "machine": f"{name}, torch {torch.__version__}",
        "command": "python benches/studies/models/evaluate.py " + " ".join(sys.argv[1:]),
        "rows": rows,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    for row in rows:
        print(f"{row['case']:24} {row['value']:7.2f} %  bar {row['bar']}")


def _row(kind: str, value: float, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "bar_id": "quality.model",
        "case": f"{kind}, {options.tokens} tokens"
        + (", pairs as in training" if options.trained_pairs else "")
        + (", told backwards" if options.reading else ""),
        "metric": "accuracy",
        "value": float(f"{value:.4g}"),
        "unit": "%",
        "rival": None,
        "rival_value": None,
        "bar": BARS.get(kind),
        "samples": options.samples,
    }


if __name__ == "__main__":
    main()
