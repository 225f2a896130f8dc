"""Tiers are refused where ranks would differ, and where memory may go under a copy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="the plugin's files import torch")

import torch
from irminsul import Policy
from irminsul.errors import Unsupported
from irminsul.integrations.sglang import build
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.settings import Settings


def _add(
    monkeypatch: pytest.MonkeyPatch, options: Settings, ranks: int, saver: bool = False
) -> None:
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: ranks)
    monkeypatch.setattr(build.compat, "server_value", lambda given, name, default: given[name])
    context: Any = SimpleNamespace(
        params=SimpleNamespace(attn_tp_cache_group="group"),
        server_args={"enable_memory_saver": saver},
    )
    table: Any = None
    build._add_tiers(context, None, table, options, Metrics(60.0), Policy())


@pytest.mark.parametrize(
    "options", [Settings(host_bytes=1 << 30), Settings(pool_master="127.0.0.1:9")]
)
def test_ranks_that_serve_the_same_requests_are_refused(
    monkeypatch: pytest.MonkeyPatch, options: Settings
) -> None:
    with pytest.raises(Unsupported, match=r"2 serve the same .* unset IRMINSUL_HOST_BYTES"):
        _add(monkeypatch, options, 2)


def test_memory_that_may_be_released_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unsupported, match="drop --enable-memory-saver"):
        _add(monkeypatch, Settings(host_bytes=1 << 30), 1, saver=True)


def test_without_tiers_ranks_are_nothing_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    _add(monkeypatch, Settings(), 2, saver=True)


def test_one_rank_gets_as_far_as_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AttributeError, match="tp_worker"):
        _add(monkeypatch, Settings(host_bytes=1 << 30), 1)
