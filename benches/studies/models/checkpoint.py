"""Model, optimizer and progress <-> a folder of files of at most 12 MB each.

Must not know tasks. Three files of tensors (weights, both moments), so that a checkpoint travels
where single files are limited.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

_MOMENTS = ("exp_avg", "exp_avg_sq")


def exists(folder: Path) -> bool:
    return (folder / "progress.json").exists()


def save(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: dict[str, Any]
) -> None:
    """Write the checkpoint; progress.json comes last, so that a torn one is not taken for whole."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "progress.json").unlink(missing_ok=True)
    named = dict(model.named_parameters())
    save_file({n: w.detach().cpu().contiguous() for n, w in named.items()}, folder / "fp32.st")
    for moment in _MOMENTS:
        tensors = {n: optimizer.state[w][moment].cpu().contiguous() for n, w in named.items()}
        save_file(tensors, folder / f"{moment}.st")
    (folder / "progress.json").write_text(json.dumps(progress, indent=1))


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Read a checkpoint into model and optimizer; return the progress.

    Where the tensors stayed behind and only `weights`, in bf16, came along, the optimizer begins
    anew: its moments are known again after a few hundred steps.
    """
    progress: dict[str, Any] = json.loads((folder / "progress.json").read_text())
    if not (folder / "fp32.st").exists():
        model.load_state_dict(load_file(folder / "weights" / "model.safetensors"), strict=False)
        return progress
    weights = load_file(folder / "fp32.st")
    moments = {moment: load_file(folder / f"{moment}.st") for moment in _MOMENTS}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(weights[name])
            state = {m: t[name].to(weight.device) for m, t in moments.items()}
            step = torch.tensor(float(progress["step"]), device=weight.device)
            optimizer.state[weight] = {"step": step, **state}
    return progress
