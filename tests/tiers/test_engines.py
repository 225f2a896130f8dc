"""Two engines on one store: what the first computed, the second moves instead of computing."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "integrations" / "sglang"))

import hosts
from irminsul.demo.engine import EngineProcess
from irminsul.demo.model import TinyModel
from tiers.mooncake_store import Store, until

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(1500)]

VERSION = "0.5.23"
POOL = 32_768


@contextlib.contextmanager
def _engine(model: Path, store: Store, wait: str) -> Iterator[EngineProcess]:
    """Start an engine with tiers; `wait` is its patience in seconds."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith("IRMINSUL_"):
                patch.delenv(name)
        patch.setenv("PYTHONPATH", str(hosts.require(VERSION)))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("IRMINSUL_HOST_BYTES", str(1 << 30))
        patch.setenv("IRMINSUL_POOL_MASTER", store.address)
        patch.setenv("IRMINSUL_POOL_WAIT", wait)
        engine = EngineProcess(model, reuse=True, pool_tokens=POOL, context_length=POOL)
        with engine:
            yield engine


def _prompts() -> list[np.ndarray]:
    """Return turns of one agent: a header that changes, what was said before, something new."""
    random = np.random.default_rng(5)
    said = random.integers(1000, 100_000, 3600)
    turns = []
    for turn in range(4):
        header = random.integers(1000, 100_000, 20 + 3 * turn)
        turns.append(np.concatenate([header, said]).astype(np.uint32))
        said = np.concatenate([said, random.integers(1000, 100_000, 300)])
    return turns


def test_a_second_engine_reuses_what_the_first_computed(own_store: Store, tmp_path: Path) -> None:
    model = TinyModel(vocab_size=129_280, layers=3, heads=2, context_length=POOL)
    path = model.write(tmp_path / "model")
    with _engine(path, own_store, "0") as first, _engine(path, own_store, "5") as second:
        local, remote, same = 0, 0, 0
        for ids in _prompts():
            # Nothing of its own: all that it reuses has to come from the store.
            second.flush()
            known = own_store.keys()
            ours = second.ask(ids)
            theirs = first.ask(ids)
            local += theirs.cached_tokens
            remote += ours.cached_tokens
            same += ours.token == theirs.token
            assert ours.prefix_tokens == 0
            assert own_store.settled(more_than=known)
        assert local > 8000
        assert remote >= 0.9 * local
        assert same == 4
        _outlive_the_other_engine(first, second, ids)
        _outlive_the_store(own_store, second)


def _outlive_the_other_engine(first: EngineProcess, second: EngineProcess, ids: np.ndarray) -> None:
    """Kill the engine that computed everything: its rows lie with a process of their own."""
    first.close(0)
    second.flush()
    assert second.ask(ids).cached_tokens >= 0.8 * len(ids)


def _outlive_the_store(store: Store, engine: EngineProcess) -> None:
    """Kill the master under a serving engine: answers go on, and reuse comes back."""
    random = np.random.default_rng(9)
    store.master.kill()
    store.master.wait()
    text = random.integers(1000, 100_000, 900).astype(np.uint32)
    assert engine.ask(text).cached_tokens == 0
    # What it computed itself is in its own tiers, store or not.
    moved = np.concatenate([random.integers(1000, 100_000, 30), text]).astype(np.uint32)
    assert engine.ask(moved).cached_tokens > 700
    store.restart_master()

    def served() -> bool:
        engine.flush()
        return engine.ask(moved).cached_tokens > 500

    # The holder comes back to the new master by itself; what is computed now is written there.
    assert until(served, 120.0)
