"""Models and one text at several places -> results/invariance.json: which rows stay recognisable?

Usage: python benches/studies/invariance/run.py [--weights DIR] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "models"))

import model as small  # noqa: E402
import numpy as np  # noqa: E402
import tasks  # noqa: E402
import torch  # noqa: E402
from irminsul.integrations.transformers import PICEngine  # noqa: E402
from torch import Tensor  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

PLACES = 5
LENGTH = 128
HEADERS = (64, 131, 262, 517, 1_030)
PAPER = {"c_KV": "0.77", "k_r": "0.43", "V": "0.71-0.76", "whole keys": "0.40-0.45"}

Parts = dict[str, Tensor]


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    rows = []
    for name, model in _models(options):
        print(name, flush=True)
        rows += list(_study(name, model, options.contents))
    result = {
        "machine": f"{platform.machine()} CPU, torch {torch.__version__}",
        "command": "python benches/studies/invariance/run.py " + " ".join(sys.argv[1:]),
        "rows": rows,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    for row in rows:
        print(f"{row['case']:58} {row['value']:.3f} paper {row['rival_value']}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, help="a trained latent model beside random ones")
    parser.add_argument("--contents", type=int, default=12)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "invariance.json")
    return parser.parse_args()


def _models(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """Latent, GQA and MHA models of random weights; the trained one where it is given."""
    if options.weights:
        yield "MLA, trained", small.load(options.weights)
    yield "MLA, random", small.build(small.config(tasks.VOCABULARY), seed=0, plain=True).eval()
    for name, kv_heads in (("GQA, random", 2), ("MHA, random", 8)):
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=tasks.VOCABULARY,
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=kv_heads,
            max_position_embeddings=4_096,
            initializer_range=256**-0.5,
        )
        yield name, LlamaForCausalLM(config).eval()


def _study(name: str, model: Any, contents: int) -> Iterator[dict[str, Any]]:
    """Rows of each content at five places, against rows of other contents at those places."""
    rng = torch.Generator().manual_seed(0)
    engine = PICEngine(model, capacity_tokens=65_536)
    filler = tasks.Filler()
    numbers = np.random.default_rng(0)
    seen: dict[str, list[list[Tensor]]] = {}
    for _ in range(contents):
        content = filler.cut(numbers, LENGTH).tolist()
        places = []
        for header in HEADERS:
            prompt = [tasks.BOS, *filler.cut(numbers, header).tolist(), *content]
            engine.generate([prompt], reuse=False, max_new_tokens=0)
            places.append(_parts(engine, model, len(prompt) - LENGTH))
            engine.clear()
        for part in places[0]:
            seen.setdefault(part, []).append([place[part] for place in places])
    for part, rows in seen.items():
        yield _row(name, part, rows, rng)


def _parts(engine: PICEngine, model: Any, first: int) -> Parts:
    """Rows behind `first`, by part: [layers, tokens, numbers] each."""
    (sequence,) = engine.kept()
    layers = range(model.config.num_hidden_layers)
    rows = torch.stack([engine.read_rows(sequence, layer)[first:] for layer in layers]).float()
    if rows.shape[-1] != 576:
        keys, values = rows.chunk(2, dim=-1)
        return {"whole keys": keys, "V": values}
    c_kv, k_r = rows.split([512, 64], dim=-1)
    values = []
    for layer in layers:
        attention = model.model.layers[layer].self_attn
        up = attention.kv_b_proj.weight.view(attention.num_heads, -1, 512)
        up = up[:, attention.qk_nope_head_dim :].flatten(0, 1)
        values.append(c_kv[layer] @ up.detach().float().T)
    return {"c_KV": c_kv, "k_r": k_r, "V": torch.stack(values)}


def _row(name: str, part: str, rows: list[list[Tensor]], rng: torch.Generator) -> dict[str, Any]:
    """AUC of "same content" from the cosine of two rows at different places."""
    same, other = [], []
    for index, places in enumerate(rows):
        for i in range(PLACES):
            for j in range(i + 1, PLACES):
                same.append(_cosine(places[i], places[j]))
                strange = int(torch.randint(len(rows) - 1, (1,), generator=rng))
                strange += strange >= index
                other.append(_cosine(places[i], rows[strange][j]))
    auc = area(torch.cat(same), torch.cat(other))
    return {
        "bar_id": "quality.invariance",
        "case": f"{name}, {part}",
        "metric": "auc",
        "value": float(f"{auc:.4g}"),
        "unit": "",
        "rival": "paper" if part in PAPER else None,
        "rival_value": PAPER.get(part),
        "bar": None,
        "samples": sum(len(s) for s in same),
    }


def _cosine(left: Tensor, right: Tensor) -> Tensor:
    """Cosine of rows at the same offset, every layer but the first, [n]."""
    cosine = torch.cosine_similarity(left[1:], right[1:], dim=-1)
    return cosine.flatten()


def area(positive: Tensor, negative: Tensor) -> float:
    """Area under the ROC curve: how often a positive exceeds a negative, ties counted half."""
    ordered = negative.sort().values
    below = torch.searchsorted(ordered, positive, right=False)
    not_above = torch.searchsorted(ordered, positive, right=True)
    return float((below + not_above).double().mean() / 2 / len(negative))


if __name__ == "__main__":
    main()
