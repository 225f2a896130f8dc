"""Failures of irminsul's own parts, one at a time: the host engine goes on and nothing is lost."""

from __future__ import annotations

import subprocess
import sys
from array import array
from typing import Any

import pytest
import torch
from adders import DOCUMENT, LIMITS, Adder, Cache, Result, add_one_req, ids, moved, request
from irminsul.errors import InvalidSlots
from irminsul.integrations.sglang import compat, hooks, plugin, runtime
from irminsul.integrations.sglang.admission import adder as admission_module
from irminsul.integrations.sglang.admission import budget, finding
from irminsul.integrations.sglang.admission.adder import Admission
from irminsul.integrations.sglang.agreement import Agreement
from irminsul.integrations.sglang.batch import heads, planner
from irminsul.integrations.sglang.hooks import Hooks
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.settings import Settings
from irminsul.integrations.sglang.start import refuse
from test_hooks import RUNNER, forward_batch, plan, table

CHUNK = 128


class Tree(Cache):
    def touch(self, nodes: Any) -> None:
        self.touched = [*nodes]


def fails(*_: Any, **__: Any) -> Any:
    raise LookupError("injected")


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Hooks:
    """Hooks over one donor, installed as in a scheduler, with a budget less than a prompt."""
    monkeypatch.setattr(admission_module, "_result", lambda name: Result[name])
    cache: Any = Tree(ids(DOCUMENT, 1))
    pool = type("Pool", (), {"kv_buffer": [torch.zeros(64, 1, 576)]})()
    limits = LIMITS.__class__(16, 10**6, 8, 10**6, forward_tokens=CHUNK)
    made = Hooks(cache, pool, table(), limits, Settings(), cache.metrics, Agreement.alone())
    monkeypatch.setattr(runtime, "current", made)
    return made


def admitted(serving: Hooks, adder: Adder | None = None) -> list[Any]:
    """Let two mostly known prompts be admitted, through what SGLang calls."""
    cache: Any = serving.cache
    adder = adder or Adder(cache, CHUNK)
    counts = {"cached_tokens": 0, "cached_tokens_device": 0}
    texts = [moved(ids(DOCUMENT, 1), seed, 30, 9) for seed in (5, 7)]
    requests = [request(text, **counts) for text in texts]
    for one in requests:
        assert plugin._around_add_one(add_one_req, adder, one) in Result
    return requests


def prepared(requests: list[Any]) -> Any:
    """Return the batch that SGLang makes of admitted requests."""
    lengths = [one.extend_end - one.prefix_len for one in requests]
    tokens = [t for one in requests for t in one.full_untruncated_fill_ids[: one.extend_end]]

    class Batch:
        reqs = requests
        forward_mode = type("Mode", (), {"is_extend": staticmethod(lambda: True)})
        prefix_lens = [0] * len(requests)
        extend_lens = lengths
        extend_num_tokens = sum(lengths)
        extend_logprob_start_lens = None
        return_logprob = False
        prefill_input_ids_cpu = torch.tensor(tokens)
        out_cache_loc = torch.arange(5000, 5000 + sum(lengths))

    return Batch()


def computed(batch: Any) -> int:
    """Return how many tokens the batch and its heads compute; each forward within the budget."""
    parts = [len(head.inputs) for head in batch.irm_heads or []]
    assert max([*parts, len(batch.prefill_input_ids_cpu)]) <= CHUNK
    return sum(parts) + len(batch.prefill_input_ids_cpu)


ADMISSION = [
    (Admission, "_must_wait"),
    (Admission, "_is_cut"),
    (Admission, "_waits_for_others"),
    (Admission, "_lock"),
    (Admission, "_keep"),
    (budget, "credit"),
    (compat, "extend_end"),
    (compat, "count_moved"),
    (finding, "find_spans"),
    (refuse, "round_reason"),
]


@pytest.mark.parametrize(("owner", "name"), ADMISSION)
@pytest.mark.parametrize("when", ["always", "first", "second"])
def test_a_failure_at_admission_is_a_miss(
    owner: Any, name: str, when: str, serving: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache: Any = serving.cache
    adder = Adder(cache, CHUNK)
    real, seen = getattr(owner, name), []

    def injected(*args: Any, **kw: Any) -> Any:
        seen.append(next((a.rid for a in args if hasattr(a, "rid")), None))
        # Some are asked more than once for a request, so the second is told by the adder.
        later = bool(adder.can_run_list)
        if (when == "second" and not later) or (when == "first" and len(seen) > 1):
            return real(*args, **kw)
        raise LookupError("injected")

    monkeypatch.setattr(owner, name, injected)
    requests = admitted(serving, adder)
    assert seen, "the fault is on the way"
    run = [one for one in requests if hasattr(one, "extend_end")]
    assert adder.can_run_list == run
    assert run, "the first is admitted whatever happens"
    batch = prepared(run)
    monkeypatch.setattr(owner, name, real)
    serving.plan(batch)
    assert cache.locks == 0
    reused = sum(getattr(one, "irm_reused", 0) for one in run)
    assert computed(batch) + reused == sum(one.extend_end for one in run)
    assert cache.metrics.fallbacks["planner"] >= 1


PLANNING = [
    (finding, "follow"),
    (finding, "cut_to_limits"),
    (planner, "windows_of"),
    (planner, "forget_produced_again"),
    (planner, "prepare"),
    (refuse, "batch_reason"),
    (Admission, "release"),
    (Tree, "touch"),
    (Metrics, "sample"),
]


@pytest.mark.parametrize(("owner", "name"), PLANNING)
def test_a_failure_to_plan_leaves_a_batch_that_can_run(
    owner: Any, name: str, serving: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache: Any = serving.cache
    requests = admitted(serving)
    batch = prepared(requests)
    if name != "follow":
        monkeypatch.setattr(owner, name, fails)
    else:
        cache.mirror.changes += 1
        monkeypatch.setattr(cache.mirror, "follow", fails)
    serving.plan(batch)
    monkeypatch.undo()
    reused = sum(getattr(one, "irm_reused", 0) for one in requests)
    left = len(batch.prefill_input_ids_cpu) + sum(len(h.inputs) for h in batch.irm_heads or [])
    assert left + reused == sum(one.extend_end for one in requests)
    assert len(batch.out_cache_loc) == len(batch.prefill_input_ids_cpu) == batch.extend_num_tokens
    assert sum(cache.metrics.fallbacks.values()) >= 1
    serving.admission.release()
    assert cache.locks == 0


def test_a_batch_that_cannot_be_cut_runs_in_one(
    serving: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = admitted(serving)
    batch = prepared(requests)
    monkeypatch.setattr(planner, "prepare", fails)
    monkeypatch.setattr(heads, "split", fails)
    serving.plan(batch)
    assert len(batch.prefill_input_ids_cpu) == sum(one.extend_end for one in requests)
    assert not batch.irm_heads


def test_with_other_ranks_a_failure_at_admission_is_told(
    serving: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others have gone on: an engine that ends is better than one that hangs."""
    monkeypatch.setattr(Agreement, "ranks", property(lambda self: 2))
    monkeypatch.setattr(Admission, "_must_wait", fails)
    with pytest.raises(LookupError, match="injected"):
        admitted(serving)


def test_what_sglang_raises_stays_sglang_s(serving: Hooks) -> None:
    cache: Any = serving.cache
    adder = Adder(cache, CHUNK)
    left = adder.rem_chunk_tokens

    def broken(adder: Any, one: Any) -> Any:
        raise ZeroDivisionError("SGLang's")

    with pytest.raises(ZeroDivisionError, match="SGLang's"):
        plugin._around_add_one(broken, adder, request(moved(ids(DOCUMENT, 1), 5)))
    assert adder.rem_chunk_tokens == left
    assert cache.metrics.fallbacks["planner"] == 0


def test_a_fault_of_an_earlier_batch_does_not_end_this_one(
    serving: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def relocate_rows(*rows: Any) -> None:
        calls.append(rows)
        if len(calls) == 1:
            raise InvalidSlots("an earlier relocate_rows on cuda:0 wrote nothing")

    monkeypatch.setattr(hooks, "relocate_rows", relocate_rows)
    batch, schedule = forward_batch(), type("Batch", (), {"irm_plan": plan()})()
    serving.adopt(batch, schedule, RUNNER)
    assert serving.forward(lambda runner, view: "ran", RUNNER, batch) == "ran"
    assert len(calls) == 2
    cache: Any = serving.cache
    assert cache.mirror.broken
    assert cache.metrics.fallbacks["relocation"] == 1


def test_metrics_that_cannot_be_published_are_kept_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = Metrics(60.0)

    class Full:
        def inc(self, _: float) -> Any:
            raise OSError("No space left on device")

        def labels(self, **_: str) -> Any:
            return self

    metrics._published = {"rows": Full(), "plan_seconds": Full(), "fallback": Full()}
    metrics.add("rows", 3)
    with metrics.timed("plan_seconds"):
        pass
    metrics.fallback("planner", "%s", "told")
    metrics.gauge("registry_tokens", 1.0)
    assert metrics.counts["rows"] == 3
    assert caplog.text.count("was not published") == 1


def test_a_retracted_answer_with_logprobs_shares_no_batch_with_moved_rows(
    serving: Hooks,
) -> None:
    """SGLang takes the answer's logprobs anew, for which all of the batch is computed in full."""
    cache: Any = serving.cache
    admission, document = serving.admission, ids(DOCUMENT, 1)
    prompt = moved(document, 7)
    asked = {"return_logprob": True, "logprob_start_len": len(prompt), "origin_input_ids": prompt}
    fresh = request(prompt, **asked)
    again = request(prompt + ids(12, 8), **asked, retracted_stain=True)
    adder = Adder(cache, 600)
    admission.add_one(add_one_req, adder, fresh)
    assert fresh.extend_end == len(prompt), "without an answer it moves its rows"
    assert admission.add_one(add_one_req, adder, again) is Result.OTHER
    adder = Adder(cache, 600)
    admission.add_one(add_one_req, adder, again)
    beside = request(moved(document, 5))
    admission.add_one(add_one_req, adder, beside)
    assert not admission.lends()
    assert sum(one.extend_end for one in adder.can_run_list) <= 600


def test_sglang_s_loader_imports_no_torch() -> None:
    code = "import sys, irminsul.integrations.sglang.plugin; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_prompt_that_is_no_array_of_ids_is_a_miss(serving: Hooks) -> None:
    cache: Any = serving.cache
    one = request(moved(ids(DOCUMENT, 1), 5, 30, 9))
    one.full_untruncated_fill_ids = array("i", one.full_untruncated_fill_ids)
    adder = Adder(cache, None)
    assert plugin._around_add_one(add_one_req, adder, one) is Result.CONTINUE
    assert serving.admission.lends() is False
    assert cache.locks == 0
