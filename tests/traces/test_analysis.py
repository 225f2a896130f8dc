"""Sums of an analysis against the calls they are made of."""

import numpy as np
import pytest
from irminsul.errors import InvalidParams
from irminsul.traces.analysis import MAX_TURNS, Analyzer, Totals
from irminsul.traces.corpus import TokenizedCall
from irminsul.traces.estimate import MODELS, model_named, prefill_flops


def text(seed, length):
    return np.random.default_rng(seed).integers(0, 100_000, length, dtype=np.uint32)


def calls(count):
    body = text(0, 600)
    for i in range(count):
        tokens = np.concatenate([text(100 + i, 80), body, text(200 + i, 40)])
        yield TokenizedCall(f"s{i % 3}", i // 3, i + 1, tokens)


def added(parts):
    sums = Totals()
    for part in parts:
        sums.add(part)
    return sums


def test_sums_agree():
    analyzer = Analyzer(capacity=2000)
    single = [analyzer.feed(None, call) for call in calls(12)]
    assert analyzer.total == added(single)
    assert analyzer.total == added(analyzer.turns.values())
    assert analyzer.total == added(analyzer.sessions.values())
    assert analyzer.total.calls == 12
    assert analyzer.total.prompt == 12 * 720
    assert analyzer.total.reused == 11 * 600
    assert analyzer.total.computed == analyzer.total.prompt - 11 * 600
    assert analyzer.total.bound == 11 * 600
    assert analyzer.total.finite_reused == 11 * 600
    assert analyzer.causes["content changed"].count == 9


def test_without_a_capacity_the_finite_sums_stay_empty():
    analyzer = Analyzer()
    for call in calls(3):
        analyzer.feed(None, call)
    assert analyzer.total.finite_prefix == analyzer.total.finite_reused == 0


def test_late_turns_are_summed_together():
    analyzer = Analyzer()
    for turn in range(MAX_TURNS + 5):
        analyzer.feed(None, TokenizedCall("s", turn, turn, text(turn, 5)))
    assert len(analyzer.turns) == MAX_TURNS + 1
    assert analyzer.turns[MAX_TURNS].calls == 5


def test_flops_grow_with_parameters_and_context():
    large, small = MODELS["deepseek-v3"], MODELS["deepseek-v2-lite"]
    assert prefill_flops(large, 100, 0) > prefill_flops(small, 100, 0)
    assert prefill_flops(small, 100, 10_000) - prefill_flops(small, 100, 0) == (
        2 * 27 * 16 * 320 * 10_000
    )
    with pytest.raises(InvalidParams, match="deepseek-v2-lite"):
        model_named("unknown")
