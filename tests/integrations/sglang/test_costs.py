"""Which form of attention, and which spans, the cost model chooses."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from irminsul.integrations.sglang.admission.costs import Costs, _Sums
from irminsul.integrations.sglang.spans import Span, Window


def config(**changes: Any) -> Any:
    sizes: dict[str, Any] = {
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "n_shared_experts": 2,
        "n_routed_experts": 64,
        "num_experts_per_tok": 6,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
    }
    return SimpleNamespace(**{**sizes, **changes})


COSTS = Costs.of_model(config())


def test_a_token_costs_the_weights_that_it_meets() -> None:
    bigger = Costs.of_model(config(num_hidden_layers=54, first_k_dense_replace=2))
    assert bigger.token == pytest.approx(2 * COSTS.token)
    assert Costs.of_model(config(), 2).token == pytest.approx(COSTS.token / 2)
    # Eight experts of 1,408 are 11,264 wide.
    dense = Costs.of_model(config(n_routed_experts=None, intermediate_size=11_264))
    sparse = Costs.of_model(config(intermediate_size=11_264))
    assert dense.token == pytest.approx(sparse.token)
    low_rank = Costs.of_model(config(q_lora_rank=512))
    assert low_rank.token < COSTS.token


def test_absorbing_pays_more_a_pair_and_nothing_for_prefixes() -> None:
    assert COSTS.pair_absorbed > 2 * COSTS.pair_decompressed
    assert COSTS.absorbed([(30_000, 30_001)]) < COSTS.decompressed([(30_000, 30_001)])


def test_short_holes_absorb_and_long_ones_do_not() -> None:
    assert COSTS.absorbs([(start, start + 20) for start in range(1000, 30_000, 3000)])
    assert not COSTS.absorbs([(16_000, 24_000)])
    # One break-even: whatever is longer is decompressed.
    choices = [COSTS.absorbs([(16_000, 16_000 + length)]) for length in range(1, 4000, 7)]
    assert choices == sorted(choices, reverse=True)
    only = replace(COSTS, decompresses=False)
    assert only.absorbs([(16_000, 24_000)])


def test_a_few_tokens_in_a_long_prompt_are_not_worth_a_row() -> None:
    scattered = [(start, start + 33) for start in range(2000, 32_000, 400)]
    assert COSTS.worthwhile(0, 32_768, scattered) == set()
    assert COSTS.worthwhile(0, 600, [(100, 140)]) == set()


def test_a_prompt_that_is_mostly_known_keeps_all_its_spans() -> None:
    spans = [(100 + 3600 * i, 100 + 3600 * i + 3560) for i in range(9)]
    assert COSTS.worthwhile(0, 32_768, spans) == set(spans)


def test_long_spans_stay_when_short_ones_between_long_holes_go() -> None:
    long, short = (8000, 16_000), (24_000, 24_040)
    assert COSTS.worthwhile(0, 32_768, [long, short]) == {long}


@given(st.lists(st.integers(1, 3000), min_size=3, max_size=15), st.booleans())
def test_what_is_chosen_is_never_dearer_than_computing_everything(
    lengths: list[int], decompresses: bool
) -> None:
    costs = replace(COSTS, decompresses=decompresses)
    bounds = [0, *itertools.accumulate(lengths)]
    spans = list(zip(bounds[1:-1:2], bounds[2::2], strict=False))
    end = bounds[-1] + 5
    kept = sorted(costs.worthwhile(0, end, spans))
    assert set(kept) <= set(spans)
    edges = [0, *itertools.chain.from_iterable(kept), end]
    holes = [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a]
    behind = sum(start for start, _ in holes)
    forms = [costs.absorbed]
    if decompresses and (behind >= costs.threshold or not behind):
        forms = [costs.decompressed, *(forms if behind else [])]
    chosen = min(form(holes) for form in forms) + (costs.batch if kept else 0.0)
    cold = (costs.decompressed if decompresses else costs.absorbed)([(0, end)])
    assert chosen <= cold + 1e-6


def test_much_text_behind_a_short_prefix_is_not_absorbed() -> None:
    """SGLang absorbs behind few prefix tokens, where thousands of queries are dearer so."""
    span = (3686, 4505)
    assert COSTS.worthwhile(0, 8192, [span]) == set()
    assert replace(COSTS, threshold=0).worthwhile(0, 8192, [span]) == {span}
    # An exact prefix makes SGLang absorb the rest in any case: then the span is a gain.
    assert COSTS.worthwhile(100, 8192, [span]) == {span}
    assert COSTS.worthwhile(0, 32_768, [(14_746, 18_022)]) == {(14_746, 18_022)}


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=6), st.integers(0, 9))
def test_the_sums_around_spans_are_those_of_their_holes(
    parts: list[tuple[int, int]], tail: int
) -> None:
    window, position = Window(None, 5, 5), 5
    for hole, length in parts:
        start, position = position + hole, position + hole + length
        window.spans.append(Span(start, position, 1, 0, 0, ()))
    window.end = position + tail
    holes = [hole for hole in window.holes() if hole[0] < hole[1]]
    spans = [(span.start, span.end) for span in window.spans]
    assert _Sums.around(5, window.end, spans) == _Sums.of(holes)
