"""Rows in host memory are held until they are copied, and not for as long as the batch lives."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the plugin's files import torch")

import torch
from irminsul import Namespace
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.spans import BatchPlan, HostCopy
from irminsul.integrations.sglang.tiers import runtime
from irminsul.integrations.sglang.tiers.rows import HostRows
from irminsul.tiers import ChunkRows, ChunkSpace, HostTier, RowLayout

TOKENS = 64
EMPTY = torch.empty(0, dtype=torch.int64)


class Event:
    def __init__(self) -> None:
        self.over = False

    def record(self) -> None:
        """Note where the stream is."""

    def query(self) -> bool:
        return self.over


def _tiers(monkeypatch: pytest.MonkeyPatch, *, on_gpu: bool) -> Any:
    monkeypatch.setattr(runtime.tiers_rows, "write", lambda host, layers, table: None)
    made = runtime.Tiers.__new__(runtime.Tiers)
    made._pool = SimpleNamespace(kv_buffer=[])
    made._on_gpu = on_gpu
    made._table = None
    made._metrics = Metrics(60.0)
    made._busy = deque()
    return made


def _plan(tier: HostTier) -> BatchPlan:
    ref = ChunkSpace(Namespace(), RowLayout("rows", 1, 1024)).ref(np.arange(TOKENS))
    tier.put([ChunkRows(ref, 0, 0, 0, np.zeros((1, TOKENS, 1024), dtype=np.uint8))])
    lease = tier.lease(ref)
    assert lease is not None
    slots = torch.arange(TOKENS)
    host = HostCopy(((HostRows(lease), 0, TOKENS),), slots, torch.zeros(TOKENS))
    return BatchPlan([], EMPTY, EMPTY, EMPTY, EMPTY, (), host)


def _leases(tier: HostTier) -> int:
    assert tier.used_bytes  # whoever asks takes back what was put aside
    return sum(entry.leases for entry in tier._entries.values())


def test_leases_go_when_the_copy_is_over_though_the_batch_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tier, event = HostTier(1 << 20), Event()
    monkeypatch.setattr(runtime, "event", lambda: event)
    tiers = _tiers(monkeypatch, on_gpu=True)
    plan = _plan(tier)
    tiers.copy(plan)
    tiers._let_go()
    assert _leases(tier) == 1
    event.over = True
    tiers._let_go()
    assert _leases(tier) == 0
    assert tiers._metrics.counts["tier_reused_tokens"] == TOKENS
    tiers.copy(plan)
    assert tiers._metrics.counts["tier_reused_tokens"] == TOKENS


def test_a_copy_on_the_host_is_over_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tier = HostTier(1 << 20)
    tiers = _tiers(monkeypatch, on_gpu=False)
    plan = _plan(tier)
    tiers.copy(plan)
    assert plan.host is None
    assert _leases(tier) == 0
