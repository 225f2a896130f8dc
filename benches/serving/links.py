"""A reader of links, shuffled documents -> right answers over moved rows, repaired or not.

The study of quality asks the same of the transformers engine (benches/studies/consistency); here an
SGLang server is asked. Each trial's context is served once in each way, then its questions stand on
those rows. `--weights` is a model of benches/studies/models, trained with `--reading`.

    python benches/serving/links.py --weights READER/weights --out links.json
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[1:1] = [str(HERE.parent / "studies" / name) for name in ("models", "consistency")]

import numpy as np  # noqa: E402
import scenarios  # noqa: E402
import tasks  # noqa: E402
import torch  # noqa: E402
from common import Server  # noqa: E402
from irminsul.demo import cpu_host  # noqa: E402
from irminsul.demo.model import TinyModel  # noqa: E402
from rows import Row, row, save, show  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from torch import Tensor  # noqa: E402

FULL = "full prefill"
# Moves what it finds, however little that saves: the model is small.
RID = "links-absorb"


def write(weights: Path, folder: Path, sizes: TinyModel) -> None:
    """Write the reader with heads of `sizes`, padded with zeros: kernels want production's."""
    config = json.loads((weights / "config.json").read_text())
    heads, nope = config["num_attention_heads"], config["qk_nope_head_dim"]
    same = ("vocab_size", "hidden_size", "intermediate_size", "rms_norm_eps")
    made = {**sizes.config(), **{name: config[name] for name in same}}
    (folder / "config.json").write_text(json.dumps(made))
    tensors = load_file(weights / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    scale = ((sizes.nope_head_dim + 64) / (nope + 64)) ** 0.5  # scores are divided by its like
    for name, weight in tensors.items():
        if name.endswith("q_proj.weight"):
            pad = (sizes.heads, sizes.nope_head_dim, 64)
            tensors[name] = _padded(weight.float() * scale, heads, (nope, 64), pad)
        elif name.endswith("kv_b_proj.weight"):
            pad = (sizes.heads, sizes.nope_head_dim, sizes.value_head_dim)
            tensors[name] = _padded(weight, heads, (nope, config["v_head_dim"]), pad)
        elif name.endswith("o_proj.weight"):
            pad = (sizes.heads, sizes.value_head_dim)
            tensors[name] = _padded(weight.T, heads, (config["v_head_dim"],), pad).T
    kept = {name: weight.to(torch.bfloat16).contiguous() for name, weight in tensors.items()}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def _padded(weight: Tensor, heads: int, parts: tuple[int, ...], to: tuple[int, ...]) -> Tensor:
    """Give rows of [heads, parts] as many heads and parts as `to` says."""
    out = weight.new_zeros(to[0], sum(to[1:]), weight.shape[1])
    by_head = weight.view(heads, sum(parts), -1).split(parts, dim=1)
    at = 0
    for part, size in zip(by_head, to[1:], strict=True):
        out[:heads, at : at + part.shape[1]] = part
        at += size
    return out.flatten(0, 1)


def ask(server: Server, trial: scenarios.Trial, option: Any) -> tuple[float, dict[str, bool]]:
    """Serve one trial; return the computed share of its context, and which answers are right."""
    chosen = {"sampling": {"custom_params": {"irminsul": option}}}
    server.flush()
    if option:
        for ids in trial.history:
            server.serve(np.array(ids), RID)
    context = server.serve(np.array(trial.context), RID, **chosen)
    right = {}
    for question in trial.questions:
        ids = np.array([*trial.context, *question.prompt])
        got = server.serve(ids, RID, tokens=len(question.answer), **chosen)
        right[question.kind] = tuple(got.tokens) == question.answer
    return 1 - context.cached / context.prompt, right


def made(arms: dict[str, Any], computed: Counter[str], right: Counter[Any], done: int) -> list[Row]:
    """Return how many answers of each kind were right, and the share that was computed for them."""
    found = []
    for arm in arms:
        share = round(100 * computed[arm] / done, 2)
        for kind in tasks.KINDS:
            value = round(100 * right[arm, kind] / done, 2)
            case = f"shuffled documents, {kind}, {arm}"
            found.append(
                row("links", case, "right answers", value, "%", samples=done, computed=share)
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--backend", default="flashinfer")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--documents", type=int, default=24)
    parser.add_argument("--relink", type=float, nargs="*", default=[0.02])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    arms: dict[str, Any] = {FULL: False, "irminsul": True}
    arms |= {f"relink {100 * share:g} %": {"relink": share} for share in given.relink}
    os.environ["IRMINSUL_TEST_FORM"] = "1"
    sizes = TinyModel(layers=4, nope_head_dim=48, value_head_dim=48, rope_factor=1)
    options: dict[str, Any] = {"attention_backend": given.backend}
    if given.device == "cuda":
        sizes = dataclasses.replace(sizes, heads=16, nope_head_dim=128, value_head_dim=128)
    else:
        os.environ.update(cpu_host.environment())
        options = cpu_host.engine_arguments("", max_running_requests=256)
    maker = scenarios.Maker(given.tokens, given.documents, tasks.Filler(), reading=True)
    computed, right = Counter[str](), Counter[Any]()
    with tempfile.TemporaryDirectory() as folder:
        write(given.weights, Path(folder), sizes)
        fixed = {"load_format": "auto", "max_total_tokens": 65_536, "chunked_prefill_size": -1}
        server = Server(folder, "irminsul", **{**options, **fixed, "model_path": folder})
        began, done = time.monotonic(), 0
        while done < given.samples and (not done or time.monotonic() - began < given.seconds):
            trial = maker.trial("reordered", done)
            for arm, option in arms.items():
                share, answers = ask(server, trial, option)
                computed[arm] += share
                right.update((arm, kind) for kind, good in answers.items() if good)
            done += 1
            if given.out:
                save(given.out, made(arms, computed, right, done))
        show(made(arms, computed, right, done))
        server.stop()


if __name__ == "__main__":
    main()
