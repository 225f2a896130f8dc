"""A reader of links, shuffled documents -> right answers over moved rows, repaired or not.

The study of quality asks the same of the transformers engine (benches/studies/consistency); here an
SGLang server is asked. Each trial's context is served once in each way, then its questions stand on
those rows. `--weights` is a model of benches/studies/models, trained with `--reading`.

    python benches/serving/links.py --weights READER/weights --out links.json
"""

from __future__ import annotations

import argparse
import asyncio
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

import scenarios  # noqa: E402
import tasks  # noqa: E402
import torch  # noqa: E402
from common import GPU_HEADS, Reply, Server  # noqa: E402
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


async def ask(
    server: Server, trial: scenarios.Trial, tenant: str, option: Any
) -> tuple[float, dict[str, bool]]:
    """Serve one trial; return the computed share of its context, and which answers are right."""
    chosen = {"custom_params": {"irminsul": option}}

    async def send(ids: list[int], count: int = 1) -> Reply:
        return await server.answer(ids, RID, count, sampling=dict(chosen), extra_key=tenant)

    if option:
        for ids in trial.history:
            await send(list(ids))
    context = await send(list(trial.context))
    replies = await asyncio.gather(
        *(send([*trial.context, *q.prompt], len(q.answer)) for q in trial.questions)
    )
    asked = zip(trial.questions, replies, strict=True)
    return 1 - context.cached / context.prompt, {
        q.kind: tuple(r.tokens) == q.answer for q, r in asked
    }


class Tally:
    """Trials that are asked in every way, several at once, and what came out so far."""

    def __init__(self, server: Server, arms: dict[str, Any], maker: scenarios.Maker) -> None:
        self.done = 0
        self._server, self._arms, self._maker = server, arms, maker
        self._computed, self._right = Counter[Any](), Counter[Any]()

    async def run(self, given: argparse.Namespace) -> None:
        """Ask until there are enough samples or no time is left; write the file as they end."""
        numbers, ends = iter(range(given.samples)), time.monotonic() + given.seconds

        async def worker() -> None:
            for number in numbers:
                if time.monotonic() > ends and self.done:
                    return
                await self._trial(number)
                if given.out:
                    save(given.out, self.rows())

        await asyncio.gather(*(worker() for _ in range(given.at_once)))

    async def _trial(self, number: int) -> None:
        trial = self._maker.trial("reordered", number)
        asked = (ask(self._server, trial, f"{number}-{arm}", o) for arm, o in self._arms.items())
        for arm, (share, answers) in zip(self._arms, await asyncio.gather(*asked), strict=True):
            self._computed[arm] += share
            self._right.update((arm, kind) for kind, good in answers.items() if good)
        self.done += 1

    def rows(self) -> list[Row]:
        """Return how many answers of each kind were right, and the computed share of contexts."""
        found = []
        for arm in self._arms:
            share = round(100 * self._computed[arm] / self.done, 2)
            for kind in tasks.KINDS:
                value = round(100 * self._right[arm, kind] / self.done, 2)
                case = f"shuffled documents, {kind}, {arm}"
                metric, samples = "right answers", self.done
                found.append(
                    row("links", case, metric, value, "%", samples=samples, computed=share)
                )
        return found


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--backend", default="flashinfer")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--at-once", type=int, default=1, help="trials")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--documents", type=int, default=24)
    parser.add_argument("--relink", type=float, nargs="*", default=[0.02])
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def main() -> None:
    given = parsed()
    arms: dict[str, Any] = {FULL: False, "irminsul": True}
    arms |= {f"relink {100 * share:g} %": {"relink": share} for share in given.relink}
    os.environ["IRMINSUL_TEST_FORM"] = "1"
    sizes = TinyModel(layers=4, nope_head_dim=48, value_head_dim=48, rope_factor=1)
    options: dict[str, Any] = {
        "attention_backend": given.backend,
        "max_total_tokens": 600_000,
        "cuda_graph_max_bs_decode": 64,
    }
    if given.device == "cuda":
        sizes = dataclasses.replace(sizes, **GPU_HEADS)
    else:
        os.environ.update(cpu_host.environment())
        options = cpu_host.engine_arguments("", max_running_requests=256, max_total_tokens=65_536)
    maker = scenarios.Maker(given.tokens, given.documents, tasks.Filler(), reading=True)
    with tempfile.TemporaryDirectory() as folder:
        write(given.weights, Path(folder), sizes)
        fixed = {"load_format": "auto", "chunked_prefill_size": -1, "model_path": folder}
        server = Server(folder, "irminsul", **{**options, **fixed})
        tally = Tally(server, arms, maker)
        server.run(tally.run(given))
        show(tally.rows())
        server.stop()


if __name__ == "__main__":
    main()
