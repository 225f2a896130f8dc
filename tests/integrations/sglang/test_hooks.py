"""The forward batch of a plan: expanded to holes for the model, put back for the logits."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from irminsul.integrations.sglang.admission.costs import Costs
from irminsul.integrations.sglang.agreement import Agreement
from irminsul.integrations.sglang.batch.expansion import expand
from irminsul.integrations.sglang.hooks import Hooks
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.settings import Settings
from irminsul.integrations.sglang.spans import BatchPlan, Limits
from irminsul.rotation import RopeTable

HOLES = [[(0, 32), (100, 110), (190, 200)], [(64, 80)]]
SLOTS = 64


def table() -> RopeTable:
    angles = torch.arange(512.0)[:, None] * torch.full((32,), 0.01)
    return RopeTable(torch.cat([angles.cos(), angles.sin()], dim=1), interleaved=True)


def plan() -> BatchPlan:
    positions = [p for holes in HOLES for start, end in holes for p in range(start, end)]
    return BatchPlan(
        holes=[list(holes) for holes in HOLES],
        positions=torch.tensor(positions),
        source_slots=torch.tensor([3, 4]),
        target_slots=torch.tensor([10, 11]),
        deltas=torch.tensor([5, -5]),
        shares=(),
    )


def forward_batch(*, decoding: int = 0) -> Any:
    """Return what SGLang makes of the trimmed batch: prefix + length is each request's end."""
    lengths = [52, 16] + [1] * decoding
    prefixes = [148, 64] + [300 + i for i in range(decoding)]
    ends = [p + n for p, n in zip(prefixes, lengths, strict=True)]
    return SimpleNamespace(
        forward_mode=SimpleNamespace(is_extend=lambda: True),
        batch_size=len(lengths),
        req_pool_indices=torch.arange(7, 7 + len(lengths)),
        seq_lens=torch.tensor(ends),
        seq_lens_cpu=torch.tensor(ends),
        seq_lens_sum=sum(ends),
        orig_seq_lens=torch.tensor(ends, dtype=torch.int32),
        positions=torch.cat([torch.arange(p, e) for p, e in zip(prefixes, ends, strict=True)]),
        extend_prefix_lens=torch.tensor(prefixes, dtype=torch.int32),
        extend_prefix_lens_cpu=prefixes,
        extend_seq_lens=torch.tensor(lengths, dtype=torch.int32),
        extend_seq_lens_cpu=lengths,
        extend_start_loc=torch.tensor([0, 52, 68][: len(lengths)], dtype=torch.int32),
        extend_logprob_start_lens_cpu=[180, 16] + [0] * decoding,
        next_token_logits_buffer=torch.zeros(8, 5),
        lora_ids=[None] * len(lengths),
        rids=[f"r{i}" for i in range(len(lengths))],
    )


def hooks(rows: torch.Tensor) -> Hooks:
    pool = SimpleNamespace(kv_buffer=[rows])
    limits = Limits(64, 10**6, 8, 512)
    cache: Any = SimpleNamespace(mirror=SimpleNamespace(lose=lambda reason, text: None))
    return Hooks(cache, pool, table(), limits, Settings(), Metrics(60.0), Agreement.alone())


RUNNER = SimpleNamespace(is_draft_worker=False)


def test_one_row_per_hole() -> None:
    batch = forward_batch()
    view = expand(batch, plan())
    assert view.batch_size == 4
    assert view.extend_prefix_lens_cpu == [0, 100, 190, 64]
    assert view.extend_seq_lens_cpu == [32, 10, 10, 16]
    assert view.seq_lens.tolist() == view.seq_lens_cpu.tolist() == [32, 110, 200, 80]
    assert view.seq_lens_sum == 422
    assert view.req_pool_indices.tolist() == [7, 7, 7, 8]
    assert view.extend_start_loc.tolist() == [0, 32, 42, 52]
    assert view.rids == ["r0", "r0", "r0", "r1"]
    for name in ("extend_prefix_lens", "extend_seq_lens", "extend_start_loc", "orig_seq_lens"):
        assert getattr(view, name).dtype == getattr(batch, name).dtype
    assert batch.batch_size == 2
    assert batch.extend_seq_lens_cpu == [52, 16]


def test_requests_that_a_mixed_batch_appended_stay_one_row() -> None:
    view = expand(forward_batch(decoding=1), plan())
    assert view.extend_prefix_lens_cpu == [0, 100, 190, 64, 300]
    assert view.extend_seq_lens_cpu == [32, 10, 10, 16, 1]
    assert view.req_pool_indices.tolist() == [7, 7, 7, 8, 9]


@pytest.mark.parametrize("decoding", [0, 1])
def test_holes_get_their_true_positions(decoding: int) -> None:
    batch, schedule = forward_batch(decoding=decoding), SimpleNamespace(irm_plan=plan())
    before = batch.positions.clone()
    hooks(torch.zeros(SLOTS, 1, 576)).adopt(batch, schedule, RUNNER)
    assert batch.positions[:68].tolist() == plan().positions.tolist()
    assert batch.positions[68:].tolist() == before[68:].tolist()
    assert batch.extend_logprob_start_lens_cpu == [52, 16] + [0] * decoding
    assert batch.irm_plan is schedule.irm_plan


def test_a_plan_is_adopted_once_and_by_the_target_model_only() -> None:
    schedule = SimpleNamespace(irm_plan=plan())
    mine = hooks(torch.zeros(SLOTS, 1, 576))
    draft = forward_batch()
    mine.adopt(draft, schedule, SimpleNamespace(is_draft_worker=True))
    assert draft.irm_plan is None
    mine.adopt(forward_batch(), schedule, RUNNER)
    decode = forward_batch()
    mine.adopt(decode, schedule, RUNNER)
    assert decode.irm_plan is None


def test_rows_move_before_the_model_runs_and_requests_return_after() -> None:
    rows = torch.randn(SLOTS, 1, 576)
    batch, schedule = forward_batch(), SimpleNamespace(irm_plan=plan())
    mine = hooks(rows)
    mine.adopt(batch, schedule, RUNNER)
    seen: dict[str, Any] = {}

    def model(runner: Any, view: Any) -> str:
        seen["moved"] = torch.equal(rows[[10, 11], 0, :512], rows[[3, 4], 0, :512])
        seen["rows"] = view.batch_size
        logits = mine.per_request(view)
        seen["lengths"] = logits.extend_seq_lens_cpu
        seen["starts"] = logits.extend_logprob_start_lens_cpu
        seen["buffer"] = len(logits.next_token_logits_buffer)
        return "output"

    assert mine.forward(model, RUNNER, batch) == "output"
    assert seen == {
        "moved": True,
        "rows": 4,
        "lengths": [52, 16],
        "starts": [52, 16],
        "buffer": 2,
    }
    assert mine.active is None
    assert mine.per_request(batch) is batch


@pytest.mark.parametrize("expand_cost", [0.0, 1e6])
def test_the_form_of_attention_is_chosen_for_the_rows_that_run(expand_cost: float) -> None:
    """Kept by the hooks: SGLang's runners copy a batch's own fields and lose all others."""
    batch, schedule = forward_batch(), SimpleNamespace(irm_plan=plan())
    mine = hooks(torch.zeros(SLOTS, 1, 576))
    mine._costs = Costs(1.0, 2.0, 1.0, expand_cost)
    mine.adopt(batch, schedule, RUNNER)
    seen = []
    mine.forward(lambda runner, view: seen.append(mine.absorbs), RUNNER, batch)
    assert seen == [expand_cost > 0]


def test_a_failure_to_move_rows_is_not_hidden() -> None:
    rows = torch.zeros(SLOTS, 1, 576)
    overlapping = replace(plan(), target_slots=torch.tensor([4, 11]))
    batch, schedule = forward_batch(), SimpleNamespace(irm_plan=overlapping)
    mine = hooks(rows)
    mine.adopt(batch, schedule, RUNNER)
    with pytest.raises(ValueError, match=r"\d"):
        mine.forward(lambda runner, view: "ran", RUNNER, batch)
    assert mine.active is None


def test_batches_without_a_plan_pass_untouched() -> None:
    batch = forward_batch()
    mine = hooks(torch.zeros(SLOTS, 1, 576))
    mine.adopt(batch, SimpleNamespace(), RUNNER)
    assert mine.forward(lambda runner, view: view, RUNNER, batch) is batch
