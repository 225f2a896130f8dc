"""The arms of the consistency study do what their names say, and the judge sees differences."""

import argparse

import arms
import model as small
import numpy as np
import pytest
import scenarios
import tally
import tasks
import torch
import workers
from hypothesis import given
from hypothesis import strategies as st
from irminsul import Policy
from irminsul.integrations.transformers import PICEngine, RowPiece, Span
from measure import FULL, NOISE, Bench, Sample

FILLER = tasks.Filler(length=1 << 16)
MAKER = scenarios.Maker(tokens=640, documents=6, filler=FILLER)


def tiny(layers):
    config = small.config(tasks.VOCABULARY, hidden=96, layers=layers, heads=2, mlp=32)
    model = small.build(config, seed=0).eval()
    model.config._attn_implementation = "eager"
    return model


def covered(spans):
    return {position for span in spans for position in range(span.target, span.end)}


@st.composite
def found_spans(draw):
    at, spans = draw(st.integers(0, 40)), []
    for _ in range(draw(st.integers(0, 5))):
        length = draw(st.integers(32, 90))
        source = draw(st.integers(0, 200))
        half = draw(st.integers(1, length - 1))
        pieces = (RowPiece(1, source, half), RowPiece(2, 5, length - half))
        spans.append(Span(at, pieces, at - source))
        at += length + draw(st.integers(0, 30))
    return spans


@given(found_spans(), st.lists(st.tuples(st.integers(0, 400), st.integers(1, 30)), max_size=4))
def test_without_cuts_just_these_positions(spans, cuts):
    ranges, end = [], 0
    for start, length in sorted(cuts):
        if start >= end:
            ranges.append((start, start + length))
            end = start + length
    gone = {position for start, stop in ranges for position in range(start, stop)}
    left = arms.without(spans, ranges)
    assert covered(left) == covered(spans) - gone
    whole = {(s.target + i): r for s in spans for i, r in enumerate(rows_of(s))}
    assert {(s.target + i): r for s in left for i, r in enumerate(rows_of(s))} == {
        position: row for position, row in whole.items() if position not in gone
    }


def rows_of(span):
    return [(p.sequence, p.start + i) for p in span.pieces for i in range(p.length)]


@given(found_spans())
def test_rules(spans):
    assert all(span.target >= 32 for span in arms.carve_out(spans, 999))
    for span in arms.sources_stay(spans, 999):
        assert span.rotation == 0 or span.target - span.rotation >= 32
    assert covered(arms.head(16)(spans, 999)) == {
        p for span in spans for p in range(span.target + 16, span.end)
    }
    assert all(span.rotation == 0 for span in arms.unturned(spans, 999))


@given(found_spans(), st.floats(0, 1), st.integers(0, 2**16))
def test_the_most_deviating_rows_are_chosen(spans, part, seed):
    spans = [span for span in spans if not arms.prefix([span])]
    far = torch.rand(800, generator=torch.Generator().manual_seed(seed))
    chosen = {p for a, b in arms.most_deviating(spans, far, part) for p in range(a, b)}
    behind = covered(spans[len(arms.prefix(spans)) :])
    assert chosen <= behind
    assert len(chosen) == round(part * len(behind))
    rest = behind - chosen
    if chosen and rest:
        assert min(far[list(chosen)]) >= max(far[list(rest)])


@pytest.mark.parametrize("scenario", ["shifted", "reordered", "deleted"])
def test_the_irminsul_arm_is_the_default_policy(scenario):
    """The study cuts the rules' effect out of one plan; the library plans with the rules."""
    model = tiny(1)
    by_rule, by_policy = PICEngine(model, policy=Policy(sink_tokens=0)), PICEngine(model)
    for index in range(2):
        trial = MAKER.trial(scenario, index)
        for engine in (by_rule, by_policy):
            engine.clear()
            engine.generate([trial.history[0]], max_new_tokens=0)
        cut = arms.IRMINSUL.spans(by_rule.plan(trial.context), trial.context)
        planned = by_policy.plan(trial.context)
        different = covered(cut) ^ covered(planned)
        assert len(different) <= 0.02 * len(trial.context)
        assert len(covered(cut)) > 0.6 * len(trial.context)


@pytest.mark.parametrize("scenario", scenarios.SCENARIOS)
def test_scenarios_keep_what_is_asked_for(scenario):
    for index in range(3):
        trial = MAKER.trial(scenario, index)
        again = MAKER.trial(scenario, index)
        assert again.context == trial.context
        present = set(trial.context)
        keys = {t for q in trial.questions for t in q.prompt if t in tasks.NAMES}
        assert keys <= present
        assert [q.kind for q in trial.questions] == list(tasks.KINDS)
        assert len(trial.history) == (9 if scenario == "chain" else 1)


def test_one_layer_tells_naive_reuse_from_irminsul():
    """With one layer moved rows are exact, so irminsul has no divergence and naive reuse has."""
    torch.set_num_threads(1)
    bench = Bench(tiny(1), capacity_tokens=40_000, chunk_tokens=512)
    chosen = [arms.ARMS[0], arms.IRMINSUL]
    samples = list(bench.run([MAKER.trial("shifted", 0)], chosen))
    kl = {name: sum(s.kl for s in samples if s.arm == name) for name in {s.arm for s in samples}}
    assert kl[FULL] == 0.0
    assert max(kl[name] for name in NOISE) < 1e-6
    assert kl["irminsul"] < 1e-6
    assert kl["naive"] > 100 * max(kl["irminsul"], 1e-9)
    assert len(samples) == 6 * 5


def test_a_chain_reuses_what_it_made_itself():
    torch.set_num_threads(1)
    maker = scenarios.Maker(tokens=400, documents=4, filler=FILLER)
    bench = Bench(tiny(2), capacity_tokens=60_000, chunk_tokens=512)
    select = arms.Arm("select", arms.IRMINSUL.rules, select=0.2)
    samples = list(bench.run([maker.trial("chain", 0)], [arms.IRMINSUL, select]))
    share = {s.arm: s.computed for s in samples}
    kl = {name: sum(s.kl for s in samples if s.arm == name) for name in share}
    assert share["irminsul"] < share["select"] < 0.8
    assert kl["select"] < kl["irminsul"]


def test_tallies_add_up(tmp_path):
    samples = [
        Sample("single", arm, arm == FULL, True, kl, None if arm == FULL else 0, share)
        for arm, kl, share in [
            (FULL, 0.0, 1.0),
            (NOISE[0], 0.0, 1.0),
            (NOISE[1], 0.0, 1.0),
            ("naive", 0.4, 0.1),
            ("irminsul", 0.1, 0.1),
        ]
        for _ in range(4)
    ]
    samples += [
        Sample("hop2", s.arm, s.correct, True, s.kl, s.diverged, s.computed) for s in samples
    ]
    first = tally.Tally()
    first.add("shifted", 0, 4, samples)
    first.write(tmp_path / "state.json")
    second = tally.Tally.read(tmp_path / "state.json")
    second.add("shifted", 4, 8, samples)
    assert second.trials == {"shifted": 8}
    assert [second.has("shifted", trial) for trial in (0, 7, 8)] == [True, True, False]
    rows = {(row["case"], row["metric"]): row for row in second.rows()}
    assert rows["shifted, single, irminsul", "accuracy"]["value"] == 0.0
    cell = rows["shifted, single, irminsul", "accuracy"]
    assert cell["points_lost"] == [100.0, pytest.approx(30.7), pytest.approx(169.3)]
    assert cell["kl_nats"] == 0.1
    assert cell["computed"] == 10.0
    assert cell["samples"] == 8
    assert rows["shifted, single, irminsul", "kl_below_naive"]["value"] == 75.0
    (two_hop,) = [row for row in rows.values() if row["bar_id"] == "quality.2"]
    assert "no arm" in two_hop["case"]


def test_the_cheapest_setting_is_one_that_a_server_can_have():
    """An arm that knows the true rows does not count, however cheap; relink's KL is compared."""
    costs = {FULL: 1.0, "naive": 0.02, "relink 5 %": 0.07, "layer 2, 2 %": 0.04, "head 64": 0.4}
    found = tally.Tally()
    for arm, cost in costs.items():
        sample = Sample("hop2", arm, arm != "naive", True, 0.5 * (arm == "naive"), None, cost)
        found.add("reordered", 0, 1, [sample])
    rows = list(found.rows())
    (two_hop,) = [row for row in rows if row["bar_id"] == "quality.2"]
    assert two_hop["case"].endswith("cheapest within 2 points: relink 5 %")
    assert two_hop["value"] == 7.0
    (below,) = [row for row in rows if row["metric"] == "kl_below_naive"]
    assert (below["case"], below["value"]) == ("reordered, hop2, relink 5 %", 100.0)


@pytest.mark.parametrize(("hits", "samples"), [(0, 10), (10, 10), (5, 10), (95, 100)])
def test_intervals_hold_the_share(hits, samples):
    low, high = tally.interval(hits, samples)
    assert 0 <= low <= hits / samples <= high <= 1
    assert np.isclose(high - low, sum(tally.interval(hits, samples)[::-1]) - 2 * low)


@pytest.mark.parametrize("first", [0, 1250])
@pytest.mark.parametrize("scenario", scenarios.SCENARIOS)
def test_blocks_hold_every_trial_once(scenario, first):
    found = workers.blocks(scenario, 53, 8, first)
    assert [t - first for block in found for t in range(block.first, block.end)] == [*range(53)]


def test_processes_count_what_one_process_counts(tmp_path):
    small.save(tiny(2), tmp_path)
    options = argparse.Namespace(
        weights=tmp_path, device="cpu", threads=1, tokens=300, documents=3, batch=1,
        chunk_tokens=512, workers=1, reading=False, arms=["naive", "irminsul"],
    )  # fmt: skip
    wanted = workers.blocks("shifted", 2, 1)
    alone = dict(workers.run(wanted, options, 100))
    options.workers = 2
    together = dict(workers.run(wanted, options, 100))
    assert alone == together
    assert set(alone) == set(wanted)
    assert list(workers.run(wanted, options, -1)) == []


@pytest.mark.parametrize("documents", [3, 24])
def test_something_is_always_deleted(documents):
    maker = scenarios.Maker(tokens=900, documents=documents, filler=FILLER)
    for index in range(4):
        trial = maker.trial("deleted", index)
        assert len(trial.context) < len(trial.history[0]) - 20
        start = len(trial.context) // 4
        assert set(trial.context[start:]) <= set(trial.history[0])


@pytest.mark.parametrize("scenario", scenarios.SCENARIOS)
def test_a_reader_is_told_the_end_of_a_chain_first(scenario):
    maker = scenarios.Maker(tokens=900, documents=8, filler=FILLER, reading=True)
    for index in range(3):
        trial = maker.trial(scenario, index)
        (question,) = [q for q in trial.questions if q.kind == "hop2"]
        text = list(trial.context)
        first = text.index(question.prompt[1])
        second = text.index(text[first + 1])
        assert second < first
        assert text[second + 1] == question.answer[0]
