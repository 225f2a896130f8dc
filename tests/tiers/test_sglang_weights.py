"""Weights that change under the tree: nothing of it leaves the engine until the tree is emptied."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="the plugin's files import torch")

sys.path.insert(0, str(Path(__file__).parents[1] / "integrations" / "sglang"))

import hosts
import torch
from irminsul.integrations.sglang.agreement import Agreement
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.tiers.identity import weights_digest
from irminsul.integrations.sglang.tiers.runtime import Tiers
from irminsul.rotation import RopeTable
from irminsul.tiers import RowLayout


class Writer:
    def __init__(self) -> None:
        self.namespaces: list[Any] = []

    def path(self, leaf: Any, root: Any, namespace: Any, *_: Any) -> None:
        self.namespaces.append(namespace)

    def reset(self) -> None:
        """Forget nothing: the test looks at it."""


def _tiers(model: torch.nn.Module) -> Any:
    tiers: Any = Tiers.__new__(Tiers)
    tiers._agreement = Agreement.alone()
    tiers._model = model
    angles = torch.arange(64)[:, None] * (10000.0 ** (-torch.arange(32) / 32.0))
    tiers._table = RopeTable(torch.cat([angles.cos(), angles.sin()], 1).float(), interleaved=True)
    tiers._cache = SimpleNamespace(
        namespace_fields=lambda request: {"tenant": "t", "lora": getattr(request, "lora_id", "")}
    )
    tiers._metrics = Metrics(60.0)
    tiers._writer = Writer()
    tiers._clock = SimpleNamespace(stream=None)
    tiers.chunks = SimpleNamespace(layout=RowLayout("rows", 1, 8), clear=lambda: None)
    tiers.queue = SimpleNamespace(enter=lambda request, namespace_of: None)
    tiers._identity, tiers._mixed = None, False
    return tiers


def test_rows_of_two_weights_are_not_written_and_new_ones_have_a_new_name() -> None:
    model = torch.nn.Linear(8, 8)
    tiers = _tiers(model)
    request = SimpleNamespace()
    tiers.enter(request)
    tiers.wrote(request, "leaf", "root")
    tiers.new_weights()
    with torch.no_grad():
        model.weight.mul_(2.0)
    tiers.enter(request)
    # The tree was not emptied: this path may hold rows of the old weights.
    tiers.wrote(request, "leaf", "root")
    assert len(tiers._writer.namespaces) == 1
    tiers.reset()
    tiers.enter(request)
    tiers.wrote(request, "leaf", "root")
    old, new = tiers._writer.namespaces
    assert old != new
    assert not tiers._metrics.fallbacks


def test_a_session_of_updates_without_a_flush_keeps_rows_here_and_one_with_it_does_not() -> None:
    for flushes, used, written in ((False, False, 0), (True, False, 1), (True, True, 0)):
        tiers = _tiers(torch.nn.Linear(8, 8))
        request = SimpleNamespace()
        tiers.enter(request)
        tiers.new_weights()
        if flushes:
            tiers.reset()
        if used:
            tiers.enter(SimpleNamespace())
        tiers.finish_weights()
        tiers.enter(request)
        tiers.wrote(request, "leaf", "root")
        assert len(tiers._writer.namespaces) == written


def test_rows_behind_an_adapter_are_this_engines_own() -> None:
    model = torch.nn.Linear(8, 8)
    names = []
    for lora in ("", "adapter at that path"):
        one, two = _tiers(model), _tiers(model)
        for tiers in (one, two):
            request = SimpleNamespace(lora_id=lora)
            tiers.enter(request)
            tiers.wrote(request, "leaf", "root")
        names.append((*one._writer.namespaces, *two._writer.namespaces))
    (plain, same), (ours, theirs) = names
    assert plain == same
    assert len({plain, ours, theirs}) == 3


def test_equal_weights_under_another_configuration_have_another_name() -> None:
    def named(**fields: Any) -> str:
        model = torch.nn.Linear(8, 8)
        torch.nn.init.ones_(model.weight)
        torch.nn.init.ones_(model.bias)
        model.config = SimpleNamespace(to_dict=lambda: fields)
        return weights_digest(model)

    plain = named(experts=6, dtype=torch.bfloat16, _name_or_path="/here", rope={"factor": 40})
    assert plain == named(
        rope={"factor": 40}, experts=6, dtype=torch.bfloat16, _name_or_path="/there"
    )
    assert plain != named(experts=4, dtype=torch.bfloat16, rope={"factor": 40})
    assert plain != named(experts=6, dtype=torch.float16, rope={"factor": 40})


def test_a_model_that_cannot_be_read_has_a_name_of_its_own() -> None:
    tiers = _tiers(SimpleNamespace())  # type: ignore[arg-type]
    names = []
    for _ in range(2):
        tiers.reset()
        tiers.enter(SimpleNamespace())
        names.append(tiers._identity["model"])
    assert len(set(names)) == 2
    assert tiers._metrics.fallbacks["tier_identity"] == 2


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", hosts.ENDS)
def test_a_flush_inside_the_update_comes_last(version: str) -> None:
    done = hosts.run(version, Path(__file__).parent / "driver" / "updates.py")
    assert done.returncode == 0, done.stderr[-3000:]
    facts = json.loads(done.stdout.split("FACTS ")[1])
    assert facts["True"] == ["new weights", "load", "reset"]
    assert facts["False"] == ["new weights", "load"]
    session = ["new weights", "begin", "finish weights", "end"]
    assert facts["session"] in ([session] if version == "0.5.23" else [session, []])
