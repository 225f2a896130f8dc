"""A scheduler process of SGLang -> when each decode step began; and contexts filled without work.

An SGLang plugin of the processes that `backend_engine` starts; must not know what is measured.

A decode step's time depends on how many rows a request reads, not on what they hold. While the file
that ends in ``.fill`` exists, prefill leaves all layers out and the pool's rows are random numbers:
half a million tokens of context take a second instead of a minute for every engine.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "IRMINSUL_BENCH_STEPS"
"""Names the file that steps are written to, one JSON list a line: seconds, requests, device ms."""

_FORWARD = "sglang.srt.model_executor.model_runner.ModelRunner.forward"
_TIMED = 8
"""Of so many steps one is timed on the device as well."""


def register() -> None:
    """Hook the model's forward where the variable asks for it."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if place := os.environ.get(VARIABLE):
        HookRegistry.register(_FORWARD, _around(Path(place)), HookType.AROUND)


def install(folder: Path, name: str = "steps", plugin: str = f"{__name__}:register") -> None:
    """Tell the engines that this process starts of this plugin, or of another of this folder.

    Parameters
    ----------
    folder
        Is put on the path, for this process and its engines.
    """
    about = folder / f"irminsul_bench_{name}-0.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: irminsul-bench-{name}\nVersion: 0\n"
    )
    (about / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{name} = {plugin}\n")
    path = (str(Path(__file__).parent), str(folder))
    sys.path[:0] = path
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (*path, os.environ.get("PYTHONPATH"))))


def _around(place: Path) -> Callable[..., Any]:
    fill = place.with_suffix(".fill")
    steps = _Steps(place)

    def forward(
        original: Callable[..., Any], runner: Any, batch: Any, *rest: Any, **more: Any
    ) -> Any:
        if batch.forward_mode.is_decode():
            return steps.timed(batch.batch_size, lambda: original(runner, batch, *rest, **more))
        if batch.forward_mode.is_extend() and fill.exists():
            steps.fill_pool(runner)
            with _no_layers(runner.model.model):
                return original(runner, batch, *rest, **more)
        return original(runner, batch, *rest, **more)

    return forward


class _no_layers:  # noqa: N801  (a context manager)
    def __init__(self, model: Any) -> None:
        self._model, self._end = model, model.end_layer

    def __enter__(self) -> None:
        self._model.end_layer = self._model.start_layer

    def __exit__(self, *_: object) -> None:
        self._model.end_layer = self._end


class _Steps:
    """Writes steps to a file; what the device took is known, and written, some steps later."""

    def __init__(self, place: Path) -> None:
        self._place, self._file = place, None
        self._number, self._filled = 0, False
        self._open: tuple[Any, Any, int] | None = None

    def timed(self, requests: int, call: Callable[[], Any]) -> Any:
        import torch

        self._number += 1
        marks = None
        if torch.cuda.is_available() and self._number % _TIMED == 0 and self._open is None:
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            marks[0].record()
        self._write(requests)
        result = call()
        if marks:
            marks[1].record()
            self._open = (*marks, requests)
        return result

    def _write(self, requests: int) -> None:
        took = None
        if self._open and self._open[1].query():
            start, end, of = self._open
            took, self._open = (round(start.elapsed_time(end), 4) if of == requests else None), None
        if self._file is None:
            self._file = self._place.open("a", buffering=1)
        self._file.write(json.dumps([time.perf_counter(), requests, took]) + "\n")

    def fill_pool(self, runner: Any) -> None:
        if not self._filled:
            for layer in runner.token_to_kv_pool.kv_buffer:
                layer.normal_()
            self._filled = True
