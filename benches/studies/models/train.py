"""Generated worlds -> a trained model, in pieces that each fit a short lease of one GPU.

Must not know studies. Usage, twice or more until it says "finished":
    python benches/studies/models/train.py --state DIR --seconds 520 --total-seconds 1080
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import batches
import checkpoint
import drafts
import model as small
import tasks
import torch
from forward import Forward
from torch import Tensor
from torch.nn import functional
from transformers import DeepseekV3ForCausalLM

_FILLER = 64
"""Tokens before the questions that are predicted too."""


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
        self.stages = drafts.curriculum(options.max_length, options.batch_tokens)
        if options.pin is not None:
            self.stages = [replace(self.stages[options.pin], names=128, latest=1.0, bars={})]
        if checkpoint.exists(options.state):
            self.progress = Progress(**checkpoint.load(options.state, self.model, self.optimizer))
        self._first_step = 0 if self.optimizer.state else self.progress.step
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.forward = Forward(self.model, dtype)
        self.source = batches.Source(options.seed, self.device, reading=options.reading)
        self._seen: dict[str, list[float]] = defaultdict(list)

    def run(self) -> None:
        """Train until this piece's time is over or the whole budget is spent."""
        begin = last = saved = time.monotonic()
        while True:
            stage = self.stages[self.progress.stage]
            loss = self._step(self.source.batch(stage, self.progress.step))
            if self.progress.step % self.options.measure_every == 0:
                loss = loss.cpu()  # the clock below means work done, not work ordered
            now = time.monotonic()
            self.progress.seconds += now - last
            last = now
            if self.progress.step % self.options.log_every == 0:
                self._report(loss)
            if now - saved > self.options.save_every:
                self._save()
                saved = last = time.monotonic()
            if self.progress.seconds >= self.options.total_seconds:
                break
            if now - begin >= self.options.seconds:
                break
        self._save()
        finished = self.progress.seconds >= self.options.total_seconds
        print("finished" if finished else "to be continued", flush=True)

    def _save(self) -> None:
        checkpoint.save(self.options.state, self.model, self.optimizer, asdict(self.progress))
        small.save(self.model, self.options.state / "weights")

    def _step(self, batch: batches.Batch) -> Tensor:
        for group in self.optimizer.param_groups:
            group["lr"] = group["base_lr"] * self._rate()
        states = self.forward(batch.tokens)
        first = max(1, batch.tail - _FILLER)
        logits = self.forward.logits(states[-1][:, first - 1 : -1])
        losses = functional.cross_entropy(
            logits.flatten(0, 1), batch.tokens[:, first:].flatten(), reduction="none"
        )
        weights = batch.weights[:, first:].flatten()
        loss = (losses * weights).sum() / weights.sum()
        if scale := self._lens_scale():
            lens = self._read if self.options.reading else self._lens
            (loss + scale * lens(states, batch)).backward()
        else:
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.progress.step += 1
        self.progress.stage_step += 1
        self.progress.tokens += batch.tokens.numel()
        if self.progress.step % self.options.measure_every == 0:
            right = torch.ones_like(batch.tokens, dtype=torch.bool)
            right[:, first:] = logits.detach().argmax(-1) == batch.tokens[:, first:]
            self._measure(right, batch)
        return loss.detach()

    def _lens_scale(self) -> float:
        """Held, then brought to nothing between the given parts of the time."""
        part = self.progress.seconds / self.options.total_seconds
        begin, end = self.options.lens_until
        return self.options.lens * min(1.0, max(0.0, (end - part) / (end - begin)))

    def _lens(self, states: list[Tensor], batch: batches.Batch) -> Tensor:
        """Loss of early layers' own predictions where a question ends: one link more each layer."""
        at = torch.tensor([asked.first - 1 for asked in batch.asked]).to(self.device)
        total = torch.zeros((), device=self.device)
        for index, state in enumerate(states[1:-1]):
            logits = self.forward.logits(state[:, at])
            target = batch.steps[:, :, min(index, 2)]
            losses = functional.cross_entropy(
                logits.flatten(0, 1), target.flatten(), reduction="none"
            )
            there = batch.present.flatten()
            total = total + (losses * there).sum() / there.sum().clamp(min=1)
        return total

    def _read(self, states: list[Tensor], batch: batches.Batch) -> Tensor:
        """The same where a fact ends that leads on: one link more each layer, as it is read."""
        total = torch.zeros((), device=self.device)
        if (read := batch.read) is None:
            return total
        for index, state in enumerate(states[1:-1]):
            at = read.at[..., None].expand(-1, -1, state.shape[2])
            losses = functional.cross_entropy(
                self.forward.logits(state.gather(1, at)).flatten(0, 1),
                read.steps[:, :, min(index, 1)].flatten(),
                reduction="none",
            )
            there = read.present.flatten()
            total = total + (losses * there).sum() / there.sum().clamp(min=1)
        return total

    def _rate(self) -> float:
        """Warm up over steps, then hold, then go down to nothing over the last quarter of time."""
        warm = min(1.0, (self.progress.step - self._first_step + 1) / self.options.warmup)
        left = 1.0 - self.progress.seconds / self.options.total_seconds
        return warm * min(1.0, max(left / 0.25, 0.02))

    def _measure(self, right: Tensor, batch: batches.Batch) -> None:
        """Follow the accuracy of whole answers, kind by kind, and move on when it is high."""
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
    parser.add_argument("--lens", type=float, default=0.3, help="weight of early layers' loss")
    parser.add_argument(
        "--reading", action="store_true", help="links are followed when a fact is read"
    )
    parser.add_argument("--lens-until", type=float, nargs=2, default=(0.5, 0.75))
    parser.add_argument("--save-every", type=float, default=60)
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
