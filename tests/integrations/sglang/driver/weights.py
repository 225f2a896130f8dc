"""New weights and flushes -> whether anything that the old weights computed is served again."""

from __future__ import annotations

import time
from typing import Any

import torch
from host import Host, answer
from text import Writer


def run(host: Host) -> dict[str, Any]:
    writer = Writer(seed=8)
    facts = {name: _case(host, writer, name) for name in ("disk", "tensor")}
    host.idle_check()
    return facts


def _case(host: Host, writer: Writer, kind: str) -> dict[str, Any]:
    document = writer.text(200)

    def cached(name: str) -> int:
        prompt = writer.text(writer.number(33, 90)) + document + writer.text(8)
        return int(answer(host.run(prompt, f"{kind}-{name}"))["cached"])

    facts: dict[str, Any] = {"first": cached("donor"), "before": cached("before")}
    facts["updated"] = _update(host, kind)
    facts["after"] = cached("after")
    facts["again"] = cached("again")
    return facts


def _update(host: Host, kind: str) -> bool:
    engine = host.engine
    # An answer may arrive before the scheduler is idle, and one that is not refuses to be flushed.
    time.sleep(2)
    if kind == "disk":
        return bool(engine.update_weights_from_disk(host.config["model"])[0])
    # Newer engines want such updates between a beginning and an end.
    session = hasattr(engine, "begin_weight_update")
    if session:
        engine.begin_weight_update()
    tensors = [("model.norm.weight", torch.full((256,), 0.5, dtype=torch.bfloat16))]
    done = engine.update_weights_from_tensor(tensors)
    if session:
        engine.end_weight_update()
    return bool(done[0])
