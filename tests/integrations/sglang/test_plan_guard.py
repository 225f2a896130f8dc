"""SGLang's decode plans on a fake device: none is overwritten before its copy has ended."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from irminsul.integrations.sglang import plan_guard, runtime
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.plan_guard import PlanGuard
from irminsul.integrations.sglang.settings import Settings

MODULE = "sglang.srt." + plan_guard.TARGET.rpartition(".")[0]
REGISTRY = "sglang.srt.layers.attention.attention_registry"


Work = Callable[[], None]


class Device:
    """A stream that runs `late` copies behind the host; a copy reads its buffer when it runs."""

    def __init__(self, late: int) -> None:
        self.late, self.capturing, self.waits = late, False, 0
        self.pending: list[Work] = []
        self.Event = lambda: Event(self)

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def enqueue(self, work: Work) -> None:
        self.pending.append(work)
        while len(self.pending) > self.late:
            self.pending.pop(0)()

    def synchronize(self, work: Work | None) -> None:
        self.waits += 1
        while work in self.pending:
            self.pending.pop(0)()


class Event:
    def __init__(self, device: Device) -> None:
        self._device = device
        self._work: Work | None = None

    def record(self) -> None:
        self._work = self._device.pending[-1] if self._device.pending else None

    def query(self) -> bool:
        return self._work not in self._device.pending

    def synchronize(self) -> None:
        self._device.synchronize(self._work)


def wrapper_on(device: Device) -> Any:
    return SimpleNamespace(pinned=[None], ran=[], device=device)


def fast_mla_decode_plan(self: Any, qo_indptr_cpu: Any, *rest: Any) -> None:
    """Write the plan into pinned memory and have it copied, as SGLang does: nothing waits."""
    self.pinned[0] = qo_indptr_cpu
    self.device.enqueue(lambda: self.ran.append(self.pinned[0]))


def guarded(device: Any) -> tuple[PlanGuard, Metrics]:
    metrics = Metrics(60.0)
    guard = PlanGuard(metrics)
    guard._cuda = device
    return guard, metrics


@pytest.mark.parametrize("late", [0, 1, 3])
def test_every_step_runs_with_its_own_plan(late: int) -> None:
    device = Device(late)
    guard, metrics = guarded(device)
    wrapper = wrapper_on(device)
    for step in range(9):
        guard.plan(fast_mla_decode_plan, wrapper, step)
    device.synchronize(device.pending[-1] if device.pending else None)
    assert wrapper.ran == list(range(9))
    assert metrics.counts["late_plans"] == (8 if late else 0)


def test_without_the_guard_a_late_device_runs_later_plans() -> None:
    """The fake shows the race that the guard is for."""
    wrapper = wrapper_on(Device(2))
    for step in range(9):
        fast_mla_decode_plan(wrapper, step)
    assert wrapper.ran != list(range(len(wrapper.ran)))


def test_each_captured_size_has_its_own_buffer_and_waits_for_nobody_else() -> None:
    device = Device(1)
    guard, metrics = guarded(device)
    wrappers = (wrapper_on(device), wrapper_on(device))
    for step in range(4):
        for wrapper in wrappers:
            guard.plan(fast_mla_decode_plan, wrapper, step)
    assert metrics.counts["late_plans"] == 0
    assert device.waits == 0


def test_nothing_is_recorded_while_a_graph_is_captured() -> None:
    device = Device(1)
    device.capturing = True
    guard, _ = guarded(device)
    wrapper = wrapper_on(device)
    guard.plan(fast_mla_decode_plan, wrapper, 1)
    assert not hasattr(wrapper, plan_guard._COPIED)


def test_a_plan_that_fails_is_told_and_the_next_one_goes_on() -> None:
    device = Device(0)
    guard, _ = guarded(device)
    wrapper = wrapper_on(device)

    def fails(self: Any, *_: Any) -> None:
        raise RuntimeError("Error in alternate MLA plan")

    with pytest.raises(RuntimeError, match="alternate"):
        guard.plan(fails, wrapper, 0)
    guard.plan(fast_mla_decode_plan, wrapper, 1)
    assert wrapper.ran == [1]


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> Any:
    """As much of SGLang as is wrapped; its backend's module."""
    registry: Any = types.ModuleType(REGISTRY)
    registry.ATTENTION_BACKENDS = {"flashinfer": lambda runner: ("backend", runner)}
    registry.register_attention_backend = lambda name: (
        lambda made: registry.ATTENTION_BACKENDS.__setitem__(name, made)
    )
    backend: Any = types.ModuleType(MODULE)
    backend.fast_mla_decode_plan = fast_mla_decode_plan
    parts = MODULE.split(".")
    for count in range(1, len(parts)):
        monkeypatch.setitem(
            sys.modules, ".".join(parts[:count]), types.ModuleType(parts[count - 1])
        )
    for module in (registry, backend):
        monkeypatch.setitem(sys.modules, module.__name__, module)
        parent, _, name = module.__name__.rpartition(".")
        monkeypatch.setattr(sys.modules[parent], name, module, raising=False)
    monkeypatch.setattr(runtime, "current", None)
    plan_guard.install()
    backend.create = lambda **fields: registry.ATTENTION_BACKENDS["flashinfer"](
        SimpleNamespace(**fields)
    )
    return backend


def test_the_guard_comes_with_the_backend_and_works_while_irminsul_serves(
    sglang: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sglang.fast_mla_decode_plan is fast_mla_decode_plan
    assert sglang.create(use_mla_backend=True)[0] == "backend"
    plan = sglang.fast_mla_decode_plan
    assert plan is not fast_mla_decode_plan
    sglang.create(use_mla_backend=True)
    plan_guard.install()
    assert sglang.fast_mla_decode_plan is plan, "wrapped once"
    device = Device(1)
    wrapper = wrapper_on(device)
    plan(wrapper, 0)
    plan(wrapper, 1)
    assert not hasattr(wrapper, plan_guard._COPIED), "nobody serves"
    guard, metrics = guarded(device)
    monkeypatch.setattr(runtime, "current", SimpleNamespace(plan_guard=guard))
    plan(wrapper, 2)
    plan(wrapper, 3)
    assert metrics.counts["late_plans"] == 1
    monkeypatch.setattr(runtime, "current", SimpleNamespace(plan_guard=None))
    plan(wrapper, 4)
    assert metrics.counts["late_plans"] == 1


def test_other_models_and_other_plans_are_left_alone(
    sglang: Any, caplog: pytest.LogCaptureFixture
) -> None:
    sglang.create(use_mla_backend=False)
    assert sglang.fast_mla_decode_plan is fast_mla_decode_plan
    flashinfer = SimpleNamespace(decode_attention_backend=None, attention_backend="flashinfer")
    triton = SimpleNamespace(decode_attention_backend="triton", attention_backend="flashinfer")
    plan_guard.warn(triton, Settings())
    plan_guard.warn(flashinfer, Settings(plan_guard=False))
    assert not caplog.records
    sglang.fast_mla_decode_plan = other = lambda wrapper, plan: None
    sglang.create(use_mla_backend=True)
    assert sglang.fast_mla_decode_plan is other
    plan_guard.warn(flashinfer, Settings())
    assert "irminsul needs (self, qo_indptr_cpu)" in caplog.text
    sglang.fast_mla_decode_plan = fast_mla_decode_plan
    sglang.create(use_mla_backend=True)
    caplog.clear()
    plan_guard.warn(flashinfer, Settings())
    assert not caplog.records
