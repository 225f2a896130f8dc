"""On a GPU, what is written behind is read only once its rows and its slots have been made."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the plugin's files import torch")

import torch
from irminsul import ChunkParams, Namespace, Policy
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.tiers import identity
from irminsul.integrations.sglang.tiers import writer as tiers_writer
from irminsul.integrations.sglang.tree.provenance import Segment
from irminsul.tiers import ChunkPool
from tiers.written_paths import drained, leaf

TOKENS = 600


class Stream:
    """Stands for a CUDA stream: notes what it was told to wait for."""

    def __init__(self, log: list[str], name: str) -> None:
        self.log = log
        self.name = name

    def record_event(self) -> str:
        return self.name

    def wait_event(self, mark: str) -> None:
        self.log.append(f"wait for {mark}")

    def synchronize(self) -> None:
        self.log.append("synchronize")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what happens, in order, with stand-ins for CUDA's streams."""
    happened: list[str] = []
    joined, empty = torch.cat, torch.empty

    @contextlib.contextmanager
    def on(stream: Any) -> Iterator[None]:
        happened.append("enter")
        yield
        happened.append("leave")

    def cat(parts: Any, *args: Any, **kw: Any) -> Any:
        happened.append("read slots")
        return joined(parts, *args, **kw)

    def plain(*args: Any, pin_memory: bool = False, **kw: Any) -> Any:
        return empty(*args, **kw)

    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(happened, "scheduler"))
    monkeypatch.setattr(tiers_writer.torch, "cat", cat)
    monkeypatch.setattr(tiers_writer.torch, "empty", plain)
    return happened


def _leaf() -> Any:
    ids = np.random.default_rng(0).integers(0, 1000, TOKENS).tolist()
    return leaf(ids, [Segment(TOKENS, 0, 0, 1)])


def test_slots_are_read_behind_the_forward_and_the_scheduler(log: list[str]) -> None:
    layers = [torch.zeros(TOKENS, 1, 8)]
    chunks = ChunkPool(identity.row_layout(layers, 0), 2 << 20, policy=Policy(sink_tokens=0))
    cache = SimpleNamespace(inc_lock_ref=lambda node: None, dec_lock_ref=lambda node: None)
    metrics = Metrics(60.0)
    writer = tiers_writer.WriteBehind(
        chunks,
        layers,
        cache,
        metrics,
        most_tokens=4096,
        max_chunk=ChunkParams().max,
        max_hops=15,
        max_depth=8,
    )
    writer._stream = Stream(log, "own")
    writer.path(_leaf(), "root", Namespace(), Stream(log, "forward"))
    assert drained(writer)
    writer.close()
    assert log[:4] == ["wait for forward", "wait for scheduler", "enter", "read slots"]
    assert log[-2:] == ["synchronize", "leave"]
    assert metrics.counts["tier_written_tokens"] > 64
    assert not metrics.fallbacks


def test_ranks_lock_the_same_paths_whatever_they_have_to_copy() -> None:
    """One rank has all of the path already, and one must not trust what is recorded of it."""
    layers = [torch.zeros(TOKENS, 1, 8)]
    locks: list[list[str]] = []
    for known, trusted in ((False, True), (True, True), (False, False)):
        chunks = ChunkPool(identity.row_layout(layers, 0), 2 << 20, policy=Policy(sink_tokens=0))
        taken: list[str] = []
        cache = SimpleNamespace(
            inc_lock_ref=lambda node, taken=taken: taken.append("lock"),
            dec_lock_ref=lambda node, taken=taken: taken.append("unlock"),
        )
        writer = tiers_writer.WriteBehind(
            chunks,
            layers,
            cache,
            Metrics(60.0),
            most_tokens=4096,
            max_chunk=ChunkParams().max,
            max_hops=15,
            max_depth=8,
            together=True,
        )
        for turn in range(2 if known else 1):
            if turn:
                taken.clear()
            writer.path(_leaf(), "root", Namespace(), None, trusted)
            assert taken == ["lock"]
            until = time.monotonic() + 30.0
            while writer.copied <= turn and time.monotonic() < until:
                time.sleep(0.01)
            # Copied here, not yet everywhere.
            writer.unlock(turn)
            assert taken == ["lock"]
            writer.unlock(turn + 1)
        locks.append(taken)
        assert writer.locked_tokens == 0
        writer.close()
    assert locks == [["lock", "unlock"]] * 3
