"""Environment variables -> the demo's additions to an SGLang process: a CPU host and measurements.

Must not know turns or tables. Each engine process of the demo runs `register` through SGLang's
plugin entry point; `plugin_folder` makes that entry point in a folder of its own, so that the
installed package gives a production server nothing of the demo to load.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from irminsul.demo import cpu_backend, cpu_host

__all__ = ["MEASURE_FOLDER", "PLUGIN_NAME", "plugin_folder", "read_measures", "register"]

PLUGIN_NAME = "irminsul_demo"
MEASURE_FOLDER = "IRMINSUL_DEMO_MEASURE"
_SCHEDULE = "sglang.srt.managers.schedule_batch.ScheduleBatch.prepare_for_extend"
_SAMPLE = "sglang.srt.model_executor.model_runner.ModelRunner.sample"


def plugin_folder(folder: Path, name: str = PLUGIN_NAME, module: str = __name__) -> Path:
    """Make `folder` a ``PYTHONPATH`` entry whose plugin is `register` of `module`; return it."""
    metadata = folder / f"{name}-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(
        f"[sglang.srt.plugins]\n{name} = {module}:register\n"
    )
    return folder


def read_measures(folder: Path, request: str) -> tuple[int, npt.NDArray[np.float32]]:
    """Return the exact prefix (tokens) and the logits of `request`, and remove their files."""
    prefix, logits = folder / f"{request}.prefix", folder / f"{request}.logits"
    measures = int(prefix.read_text()), np.fromfile(logits, dtype=np.float32)
    prefix.unlink()
    logits.unlink()
    return measures


def register() -> None:
    """Install the CPU host, the CPU attention and, where a folder is named, the measurements."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    cpu_host.register()
    cpu_backend.register()
    if os.environ.get(MEASURE_FOLDER):
        HookRegistry.register(_SCHEDULE, _write_prefix, HookType.BEFORE)
        HookRegistry.register(_SAMPLE, _write_logits, HookType.BEFORE)


def _write_prefix(batch: Any, *_: Any, **__: Any) -> None:
    """Write how many tokens the engine's own prefix match found for each request."""
    for request in batch.reqs:
        length = getattr(request, "prefix_len", None)  # older engines hold the slots instead
        length = len(request.prefix_indices) if length is None else length
        Path(os.environ[MEASURE_FOLDER], f"{request.rid}.prefix").write_text(str(length))


def _write_logits(runner: Any, logits_output: Any, forward_batch: Any, *_: Any, **__: Any) -> None:
    """Write each request's logits as sampling finds them, fp32 [vocabulary].

    Asking the engine for log-probabilities of the whole vocabulary would send them as Python
    lists through three processes, and requests for prompt log-probabilities get no reuse.
    """
    if not forward_batch.forward_mode.is_extend():
        return
    folder = Path(os.environ[MEASURE_FOLDER])
    for request, row in zip(forward_batch.rids, logits_output.next_token_logits, strict=True):
        row.float().cpu().numpy().tofile(folder / f"{request}.logits")
