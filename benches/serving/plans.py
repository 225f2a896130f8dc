"""A scheduler's flashinfer decode plans -> how many overtake the last one; a wrong row on request.

An SGLang plugin of the engines that `soak.py` starts; must not know what is served.

SGLang plans a decode step on the host, under overlap scheduling while the step before runs:
flashinfer writes the plan into pinned memory and starts its copy to the device. A plan that is
written before that copy has run replaces the one that is still to be read.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import backend_steps

VARIABLE = "IRMINSUL_BENCH_PLANS"
"""Names the file that counts go to. Beside it ``.wait`` fences plans; ``.row`` spoils a row."""

_PLAN = "sglang.srt.layers.attention.flashinfer_mla_backend.fast_mla_decode_plan"
_EVERY = 50  # plans between two writes of the counts


def register() -> None:
    """Hook flashinfer's decode plan where the variable asks for it."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if place := os.environ.get(VARIABLE):
        HookRegistry.register(_PLAN, Plans(Path(place)), HookType.AROUND)


def install(folder: Path, wait: bool) -> Path:
    """Count the plans of this process's next engine; return the file that names a wrong row.

    Parameters
    ----------
    wait
        Let every plan wait until the last one has been copied.
    """
    backend_steps.install(folder, "plans", f"{__name__}:register")
    place = folder / "plans"
    os.environ[VARIABLE] = str(place)
    if wait:
        place.with_suffix(".wait").touch()
    return place.with_suffix(".row")


def counted() -> dict[str, float]:
    """Return what the engine's scheduler has counted so far; nothing where it plans otherwise."""
    place = Path(os.environ.get(VARIABLE, os.devnull))
    found: dict[str, float] = json.loads(place.read_text()) if place.is_file() else {}
    return found


class Plans:
    """Stands around ``fast_mla_decode_plan``: wrapper, host index pointers, slots, lengths, ..."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._row = place.with_suffix(".row")
        self._waits = place.with_suffix(".wait").exists()
        self._plans = self._late = 0
        self._waited = 0.0

    def __call__(self, original: Callable[..., None], wrapper: Any, *arguments: Any) -> None:
        import torch

        copied = getattr(wrapper, "irminsul_copied", None)
        if copied is None:
            copied = wrapper.irminsul_copied = torch.cuda.Event()
        elif not copied.query():
            self._late += 1
            if self._waits:
                began = time.perf_counter()
                copied.synchronize()
                self._waited += time.perf_counter() - began
        if self._row.exists():
            _spoil(arguments[2], self._row)
        original(wrapper, *arguments)
        copied.record()
        self._plans += 1
        if self._plans % _EVERY == 0:
            counts = {"plans": self._plans, "late": self._late, "waited": round(self._waited, 4)}
            half = self._place.with_suffix(".half")
            half.write_text(json.dumps(counts))
            half.replace(self._place)


def _spoil(slots: Any, row_file: Path) -> None:
    """Let the step read another token's row at the place that the file names."""
    place = int(row_file.read_text() or 0)
    slots[place : place + 1] = slots[place + 1 : place + 2]
