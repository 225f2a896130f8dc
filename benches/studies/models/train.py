"""Generated worlds -> a trained model, in pieces that each fit a short lease of one GPU.

Must not know studies. Usage, twice or more until it says "finished":
    python benches/studies/models/train.py --state DIR --seconds 520 --total-seconds 1080
"""

from __future__ import annotations

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import batches
import checkpoint
import model as small
import tasks
import torch
from torch import Tensor
from torch.nn import functional
from transformers import DeepseekV3ForCausalLM


@dataclass
class Progress:
    """What a piece of training leaves to the next one, besides tensors."""

    step: int = 0
    stage: int = 0
    stage_step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    accuracy: dict[str, float] = field(default_factory=dict)


class Trainer:
    """One model, its optimizer, and where in the curriculum it is."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = torch.device(options.device)
        settings = small.config(
            tasks.VOCABULARY,
            hidden=options.hidden,
            layers=options.layers,
            heads=options.heads,
            mlp=options.mlp,
        )
        self.model = small.build(settings, options.seed).to(self.device)
        self.optimizer = _optimizer(self.model, options.lr)
        self.progress = Progress()
        self.stages = batches.curriculum(options.max_length, options.batch_tokens)
        if options.pin is not None:
            self.stages = [replace(self.stages[options.pin], names=128, latest=1.0, bars={})]
        if checkpoint.exists(options.state):
            self.progress = Progress(**checkpoint.load(options.state, self.model, self.optimizer))
        self.forward = _compiled(self.model, options.compile)
        self._seen: dict[str, list[float]] = defaultdict(list)

    def run(self) -> None:
        """Train until this piece's time is over or the whole budget is spent."""
        begin = time.monotonic()
        source = batches.stream(
            self.options.seed, self.progress.step, self._stage_index, self.stages, self.options
        )
        batch = next(source)  # the workers' start is no training time
        last = time.monotonic()
        while True:
            loss = self._step(batch)
            now = time.monotonic()
            self.progress.seconds += now - last
            last = now
            if self.progress.step % self.options.log_every == 0:
                self._report(loss)
            if self.progress.seconds >= self.options.total_seconds:
                break
            if now - begin >= self.options.seconds:
                break
            batch = next(source)
        source.close()
        checkpoint.save(self.options.state, self.model, self.optimizer, asdict(self.progress))
        small.save(self.model, self.options.state / "weights")
        finished = self.progress.seconds >= self.options.total_seconds
        print("finished" if finished else "to be continued", flush=True)

    def _stage_index(self) -> int:
        return self.progress.stage

    def _step(self, batch: batches.Batch) -> Tensor:
        for group in self.optimizer.param_groups:
            group["lr"] = group["base_lr"] * self._rate()
        tokens = batch.tokens.to(self.device, non_blocking=True)
        weights = batch.weights.to(self.device, non_blocking=True)
        with _autocast(self.device):
            hidden = self.forward(tokens)
            logits = functional.linear(hidden, self.model.lm_head.weight)
        losses = functional.cross_entropy(
            logits[:, :-1].float().flatten(0, 1), tokens[:, 1:].flatten(), reduction="none"
        )
        loss = (losses * weights[:, 1:].flatten()).sum() / weights[:, 1:].sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.progress.step += 1
        self.progress.stage_step += 1
        self.progress.tokens += tokens.numel()
        if self.progress.step % self.options.measure_every == 0:
            self._measure(logits.detach(), tokens, batch)
        return loss.detach()

    def _rate(self) -> float:
        """Warm up over steps, then hold, then go down to nothing over the last quarter of time."""
        warm = min(1.0, (self.progress.step + 1) / self.options.warmup)
        left = 1.0 - self.progress.seconds / self.options.total_seconds
        return warm * min(1.0, max(left / 0.25, 0.02))

    def _measure(self, logits: Tensor, tokens: Tensor, batch: batches.Batch) -> None:
        """Follow the accuracy of whole answers, kind by kind, and move on when it is high."""
        right = (logits[:, :-1].argmax(-1) == tokens[:, 1:]).cpu()
        for kind, score in batches.score(right, batch).items():
            self._seen[kind].append(score)
            recent = self._seen[kind][-8:]
            self.progress.accuracy[kind] = sum(recent) / len(recent)
        stage = self.stages[self.progress.stage]
        enough = self.progress.stage_step >= stage.min_steps
        good = all(self.progress.accuracy.get(kind, 0.0) >= bar for kind, bar in stage.bars.items())
        late = self.progress.seconds >= stage.latest * self.options.total_seconds
        if ((enough and good) or late) and self.progress.stage + 1 < len(self.stages):
            self.progress.stage += 1
            self.progress.stage_step = 0
            self._seen.clear()

    def _report(self, loss: Tensor) -> None:
        p = self.progress
        kinds = " ".join(f"{kind} {p.accuracy[kind]:.3f}" for kind in sorted(p.accuracy))
        print(
            f"step {p.step} stage {p.stage} s {p.seconds:.0f} Mtok {p.tokens / 1e6:.1f} "
            f"loss {float(loss):.3f} {kinds}",
            flush=True,
        )


def _optimizer(model: DeepseekV3ForCausalLM, rate: float) -> torch.optim.AdamW:
    matrices = [w for n, w in model.named_parameters() if w.ndim > 1 and "embed" not in n]
    others = [w for n, w in model.named_parameters() if w.ndim < 2 or "embed" in n]
    groups = [
        {"params": matrices, "weight_decay": 0.05, "base_lr": rate},
        {"params": others, "weight_decay": 0.0, "base_lr": rate},
    ]
    fused = next(model.parameters()).is_cuda
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), eps=1e-9, fused=fused)


def _compiled(model: DeepseekV3ForCausalLM, wanted: bool) -> Callable[[Tensor], Tensor]:
    """The decoder as a function of tokens; compiled when asked for and possible."""

    def plain(tokens: Tensor) -> Tensor:
        return model.model(input_ids=tokens, use_cache=False).last_hidden_state

    if not wanted:
        return plain
    compiled = torch.compile(plain, dynamic=False)
    broken = False

    def forward(tokens: Tensor) -> Tensor:
        nonlocal broken
        if not broken:
            try:
                return compiled(tokens)
            except Exception as error:
                print(f"torch.compile failed, going on without it: {error!r:.300}", flush=True)
                broken = True
        return plain(tokens)

    return forward


def _autocast(device: torch.device) -> AbstractContextManager[object]:
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, required=True, help="checkpoint folder")
    parser.add_argument("--seconds", type=float, default=520, help="this piece")
    parser.add_argument("--total-seconds", type=float, default=1080, help="all pieces")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--pin", type=int, help="stay in this stage, with 128 names: for pilots")
    parser.add_argument("--warmup", type=int, default=200)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--mlp", type=int, default=192)
    parser.add_argument("--batch-tokens", type=int, default=131_072)
    parser.add_argument("--max-length", type=int, default=4608)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--measure-every", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    torch.set_float32_matmul_precision("high")
    trainer = Trainer(options)
    count = sum(w.numel() for w in trainer.model.parameters())
    print(f"{count:,} parameters, {2 * count / 2**20:.2f} MiB in bf16", flush=True)
    trainer.run()


if __name__ == "__main__":
    main()
