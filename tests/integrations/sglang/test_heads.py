"""A batch with more to compute than one forward may: what runs before it, and what it keeps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from irminsul.integrations.sglang.batch import heads


def batch(lengths: list[int], prefixes: list[int], **fields: Any) -> Any:
    total = sum(lengths)
    ends = [prefix + length for prefix, length in zip(prefixes, lengths, strict=True)]
    given_fields: dict[str, Any] = {
        "reqs": [
            SimpleNamespace(rid=f"r{index}", multimodal_inputs=None, input_embeds=None)
            for index in range(len(lengths))
        ],
        "extend_lens": lengths,
        "prefix_lens": prefixes,
        "extend_num_tokens": total,
        "prefill_input_ids_cpu": torch.arange(total) + 100,
        "out_cache_loc": torch.arange(total) + 5000,
        "extend_logprob_start_lens": list(lengths),
        "return_logprob": True,
        "seq_lens": torch.tensor(ends, dtype=torch.int32),
        "seq_lens_cpu": torch.tensor(ends),
        "seq_lens_sum": sum(ends),
        "orig_seq_lens": torch.tensor(ends, dtype=torch.int32),
        "req_pool_indices": torch.arange(len(lengths)) + 7,
        "extend_input_logprob_token_ids": None,
        "top_logprobs_nums": list(range(len(lengths))),
        "token_ids_logprobs": [None] * len(lengths),
        "irm_plan": None,
        "sampling_info": SimpleNamespace(grammars=["batch's own"]),
    }
    return SimpleNamespace(**{**given_fields, **fields})


def places(lengths: list[int], prefixes: list[int]) -> list[tuple[int, int]]:
    """Return the request and position of every token of a batch."""
    return [
        (owner, position)
        for owner, (prefix, length) in enumerate(zip(prefixes, lengths, strict=True))
        for position in range(prefix, prefix + length)
    ]


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=6),
    budget=st.integers(8, 200),
    data=st.data(),
)
def test_every_token_is_computed_once_after_those_before_it(
    lengths: list[int], budget: int, data: Any
) -> None:
    sizes = st.lists(st.integers(0, 99), min_size=len(lengths), max_size=len(lengths))
    prefixes = data.draw(sizes)
    whole = batch(list(lengths), list(prefixes))
    expected = dict(zip(places(lengths, prefixes), range(sum(lengths)), strict=True))
    cut = heads.split(whole, budget)
    seen: dict[tuple[int, int], int] = {}
    for head in cut:
        assert head.end - head.start <= budget
        for offset, position in enumerate(range(head.start, head.end)):
            before = position == prefixes[head.owner] or (head.owner, position - 1) in seen
            assert before, "a head runs after the tokens before it"
            assert head.slots[offset] - 5000 == head.inputs[offset] - 100
            seen[head.owner, position] = int(head.inputs[offset]) - 100
    assert sum(whole.extend_lens) <= max(budget, len(lengths)) or not cut
    assert min(whole.extend_lens) >= 1
    kept = places(whole.extend_lens, whole.prefix_lens)
    for place, token, slot in zip(
        kept, whole.prefill_input_ids_cpu, whole.out_cache_loc, strict=True
    ):
        assert token - 100 == slot - 5000
        assert place not in seen
        seen[place] = int(token) - 100
    assert seen == expected
    assert whole.extend_num_tokens == sum(whole.extend_lens)


def test_rounds_end_where_those_of_the_engine_would() -> None:
    cut = heads.split(batch([630], [0]), 64)
    assert [(head.start, head.end) for head in cut] == [(64 * i, 64 * i + 64) for i in range(9)]


@pytest.mark.parametrize("budget", [None, 100])
def test_a_batch_that_is_short_enough_stays_as_it_is(budget: int | None) -> None:
    whole = batch([60, 40], [0, 3])
    before = dict(vars(whole))
    assert heads.split(whole, budget) == []
    assert vars(whole) == before


def test_prompt_logprobs_are_cut_by_lengths_that_must_stay() -> None:
    assert heads.split(batch([600], [0], extend_logprob_start_lens=[0]), 64) == []


@pytest.mark.parametrize("field", ["multimodal_inputs", "input_embeds", "return_hidden_states"])
def test_requests_with_more_than_tokens_are_not_cut(field: str) -> None:
    whole = batch([600], [0])
    setattr(whole.reqs[0], field, [1])
    assert heads.split(whole, 64) == []


def test_a_failure_leaves_the_batch_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = batch([600], [0])
    before = dict(vars(whole))

    def refuse(*_: Any) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(heads, "to_device", refuse)
    with pytest.raises(RuntimeError):
        heads.split(whole, 64)
    assert vars(whole) == before


def test_a_head_is_a_batch_of_one_request() -> None:
    whole = batch([10, 200], [5, 40])
    whole.irm_heads = heads.split(whole, 64)
    made: list[Any] = []
    forward = SimpleNamespace(
        seq_lens=torch.tensor([15, 240]),
        extend_seq_lens_cpu=whole.extend_lens,
        extend_logprob_start_lens_cpu=[10, 200],
    )
    parts = heads.adopt(forward, whole, lambda one: made.append(one) or len(made))
    assert parts == [1, 2, 3]
    assert whole.irm_heads is None, "they run once"
    assert forward.extend_logprob_start_lens_cpu == whole.extend_lens
    assert [(one.prefix_lens, one.extend_lens) for one in made] == [
        ([40], [64]),
        ([104], [64]),
        ([168], [64]),
    ]
    last = made[-1]
    assert last.reqs == [whole.reqs[1]]
    last.sampling_info.grammars = [None]
    assert whole.sampling_info.grammars == ["batch's own"]
    assert last.seq_lens.tolist() == last.seq_lens_cpu.tolist() == [232]
    assert (last.seq_lens.dtype, last.seq_lens_sum) == (torch.int32, 232)
    assert last.req_pool_indices.tolist() == [8]
    assert last.top_logprobs_nums == [1]
    assert not last.return_logprob
    assert last.input_ids.tolist() == list(range(100 + 10 + 128, 100 + 10 + 192))


def test_a_batch_without_heads_has_none_to_run() -> None:
    assert heads.adopt(SimpleNamespace(), SimpleNamespace(), lambda one: one) == []
