"""Which moved rows are computed again, on plain trees: as the transformers engine chooses."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import adders
import numpy as np
import pytest
from adders import Node, request
from hypothesis import given, settings
from hypothesis import strategies as st
from irminsul import Policy, mentions
from irminsul.integrations.sglang.admission import adder, finding, relinking
from irminsul.integrations.sglang.admission.costs import Costs
from irminsul.integrations.sglang.batch import planner
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.settings import Settings
from irminsul.integrations.sglang.spans import Limits, Span, Window
from irminsul.integrations.sglang.tree import options
from irminsul.integrations.sglang.tree.nodes import set_record
from irminsul.integrations.sglang.tree.provenance import Moved, NodeRecord

LIMITS = Limits(rows=64, row_tokens=10**6, min_span=8, positions=10**6)
engine = pytest.importorskip("irminsul.integrations.transformers", exc_type=ImportError)


def path(*parts: list[int]) -> list[Any]:
    """Return the nodes of a path from the root that holds `parts`."""
    nodes: list[Any] = []
    start = 0
    for part in parts:
        node = Node(part, nodes[-1] if nodes else None)
        set_record(node, NodeRecord(start, 0, []))
        nodes.append(node)
        start += len(part)
    return nodes


def span(start: int, length: int, nodes: list[Any], source: int, depth: int = 0) -> Span:
    """Return positions that take over rows of a path from `source` on."""
    rows, at, left = [], 0, length
    for node in nodes:
        first = max(source, at)
        used = min(at + len(node.key) - first, left)
        if used > 0:
            rows.append((node, first - at, used))
            left -= used
            source += used
        at += len(node.key)
    assert not left
    return Span(start, start + length, start - (source - length), 0, depth, tuple(rows))


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[int], int, list[tuple[int, int, int, int, int]]]:
    """Return ids, an exact prefix, and spans as (start, length, sequence, row, depth)."""
    tokens = draw(st.lists(st.integers(0, 30), min_size=2, max_size=100))
    prefix = draw(st.integers(0, 10))
    spans, at = [], prefix
    while at < len(tokens) - 1:
        at += draw(st.integers(0, 8))
        length = min(draw(st.integers(1, 20)), len(tokens) - 1 - at)
        if length < 1:
            break
        sequence, row = draw(st.integers(0, 1)), draw(st.integers(10, 60))
        spans.append((at, length, sequence, row, draw(st.integers(0, 1))))
        at += length
    return tokens, min(prefix, len(tokens) - 1), spans


@given(plans(), st.lists(st.integers(1, 99), max_size=3))
@settings(deadline=None)
def test_the_rows_are_those_that_the_transformers_engine_chooses(
    plan: tuple[list[int], int, list[tuple[int, int, int, int, int]]], cuts: list[int]
) -> None:
    tokens, prefix, spans = plan
    kept = [tokens[:prefix] + [99] * (100 - prefix), [98] * 100]
    edges = sorted({0, 100, *cuts})
    paths = [path(*(ids[a:b] for a, b in itertools.pairwise(edges))) for ids in kept]
    window = Window(request(tokens), prefix, len(tokens))
    window.spans = [span(at, n, paths[s], row, depth) for at, n, s, row, depth in spans]
    got = relinking.new_mentions(window, window.request.full_untruncated_fill_ids)

    def taken(at: int, length: int, sequence: int, row: int, depth: int) -> Any:
        rows = (engine.RowPiece(sequence, row, length),)
        return engine.Span(at, rows, at - row, 1, depth + 1)

    exact = [engine.Span(0, (engine.RowPiece(0, 0, prefix),), 0)] if prefix else []
    spans_there = [taken(*one) for one in spans]
    wanted = engine.mentions.new_mentions(np.array(tokens, np.uint32), exact, spans_there)
    assert got.tolist() == wanted.tolist()
    again = sorted(got.tolist()[::2])
    left = relinking.without(window.spans, again, 0)
    for part in left:
        whole = next(s for s in window.spans if s.start <= part.start < s.end)
        assert part == whole.part(part.start, part.end)._replace(cut=part.cut)
    still = [position for part in left for position in range(part.start, part.end)]
    every = [position for whole in window.spans for position in range(whole.start, whole.end)]
    assert sorted([*still, *again]) == every


def test_a_row_saw_what_stands_above_it_in_the_tree_and_not_beside_it() -> None:
    trunk, left = path([1] * 20, [2] * 20)
    right = Node([3] * 20, trunk)
    set_record(right, NodeRecord(20, 0, []))
    tokens = list(range(1000, 1080))
    for first, *others in ((12, 45, 65), (25, 47, 66), (32, 48), (14, 68)):
        for other in others:
            tokens[other] = tokens[first]
    window = Window(request(tokens), 0, 80)
    window.spans = [
        Span(10, 30, 0, 0, 0, ((trunk, 10, 10), (left, 0, 10))),
        Span(40, 50, 10, 0, 0, ((left, 10, 10),)),
        Span(60, 70, 40, 0, 0, ((right, 0, 10),)),
    ]
    found = relinking.new_mentions(window, window.request.full_untruncated_fill_ids)
    # 48 lacks what is computed at 32, 65 and 66 what stands in the other branch.
    assert found.tolist() == [48, 65, 66]
    window.spans[2] = window.spans[2]._replace(depth=1)
    found = relinking.new_mentions(window, window.request.full_untruncated_fill_ids)
    assert found.tolist() == [48, 68, 65, 66]


def test_rows_on_the_host_saw_their_own_span_only() -> None:
    chunks = [SimpleNamespace(on_host=True) for _ in range(3)]
    tokens = list(range(1000, 1040))
    tokens[8], tokens[25], tokens[31] = tokens[2], tokens[12], tokens[22]
    window = Window(request(tokens), 0, 40)
    window.spans = [
        Span(10, 20, 0, 0, 0, ((chunks[0], 0, 10),)),
        Span(20, 34, 3, 0, 0, ((chunks[1], 0, 7), (chunks[2], 0, 7))),
    ]
    found = relinking.new_mentions(window, window.request.full_untruncated_fill_ids)
    assert found.tolist() == [25]


def names(*places: int, length: int = 400) -> list[int]:
    """Return ids without any repeated, but for pairs of one name at (place, place + 200)."""
    tokens = list(range(1000, 1000 + length))
    for place in places:
        tokens[place + 200] = tokens[place]
    return tokens


def shuffled(places: list[int], limits: Limits = LIMITS, costs: Costs | None = None) -> Window:
    """Plan a prompt whose second half was computed without the first."""
    nodes = path(list(range(400)))
    window = Window(request(names(*places), sampling_params=None), 0, 401)
    window.request.full_untruncated_fill_ids.append(5)
    window.spans = [span(210, 190, nodes, 100)]
    relinking.relink(window, Settings(relink=0.1), Policy(), limits, costs, Metrics(60.0))
    return window


def test_chosen_rows_are_holes_and_short_rests_are_computed_with_them() -> None:
    window = shuffled([20, 40, 46, 180])
    assert list(window.again) == [220, 240, 246, 380]
    # 210 to 220 is longer than what a run costs (8 tokens); the rest between 240 and 246 is not.
    bounds = [(s.start, s.end, s.cut) for s in window.spans]
    assert bounds == [(210, 220, True), (221, 240, True), (247, 380, True), (381, 400, True)]
    assert all(s.delta == 110 and sum(n for _, _, n in s.rows) == s.length for s in window.spans)
    assert window.unmet == 0


def test_what_a_run_costs_is_what_the_registry_reckons_with() -> None:
    window = Window(request(names(20, 40), sampling_params=None), 0, 400)
    window.spans = [span(210, 180, path(list(range(400))), 100)]
    dear = Policy(span_cost=19)
    relinking.relink(window, Settings(relink=0.1), dear, LIMITS, None, Metrics(60.0))
    assert [(s.start, s.end) for s in window.spans] == [(241, 390)]


def test_limits_on_rows_drop_the_least_wanted() -> None:
    places = [20, 60, 100, 140]
    assert list(shuffled(places, LIMITS).again) == [220, 260, 300, 340]
    few = shuffled(places, Limits(4, 10**6, 8, 10**6))  # two holes are there before
    assert (list(few.again), few.unmet) == ([220, 260], 2)
    short = shuffled(places, Limits(64, 400 + 220 + 260, 8, 10**6))
    assert (list(short.again), short.unmet) == ([220, 260], 2)
    none = shuffled(places, Limits(1, 10**6, 8, 10**6))
    assert (list(none.again), none.unmet, len(none.spans)) == ([], 4, 1)


def test_what_is_dearer_to_move_with_its_holes_is_computed() -> None:
    cheap = Costs(1.0, 0.0, 0.0, 0.0, row=1.0, batch=0.0)
    assert shuffled([20, 60], costs=cheap).spans
    window = shuffled([20, 60], costs=replace(cheap, row=99.0))
    assert (window.spans, list(window.again)) == ([], [])


def test_a_span_of_which_nothing_is_left_leaves_nothing_to_wait_for() -> None:
    window = Window(request(names(3), sampling_params=None), 0, 400)
    window.spans = [span(200, 9, path(list(range(400))), 100)]
    relinking.relink(window, Settings(relink=0.2), Policy(), LIMITS, None, Metrics(60.0))
    assert (window.spans, list(window.again), window.unmet) == ([], [], 0)


def test_a_choice_holds_for_later_rounds_over_parts_of_its_spans(monkeypatch: Any) -> None:
    window = shuffled([20, 60, 180])
    monkeypatch.setattr(relinking, "new_mentions", None)
    later = Window(window.request, 250, 401)
    later.spans = [span(250, 150, path(list(range(400))), 140)]
    relinking.relink(later, Settings(relink=0.1), Policy(), LIMITS, None, Metrics(60.0))
    assert list(later.again) == [260, 380]
    moved = Window(window.request, 250, 401)
    moved.spans = [span(250, 150, path(list(range(400))), 141)]
    with pytest.raises(TypeError):
        relinking.relink(moved, Settings(relink=0.1), Policy(), LIMITS, None, Metrics(60.0))


def given_option(option: Any) -> Any:
    return SimpleNamespace(sampling_params=SimpleNamespace(custom_params={"irminsul": option}))


@pytest.mark.parametrize(
    "option", [{"relink": 0.02}, {"relink": 1}, {"mode": "reuse", "relink": 0}]
)
def test_a_request_chooses_its_share(option: dict[str, Any]) -> None:
    assert options.exact_reason(given_option(option), Settings()) is None
    assert options.relink_share(given_option(option), Settings(relink=0.5)) == option["relink"]


@pytest.mark.parametrize("share", [-0.1, 1.5, "0.02", True, None, float("nan")])
def test_a_share_that_is_none_means_exact(share: Any) -> None:
    assert options.exact_reason(given_option({"relink": share}), Settings()) == "bad_option"


@pytest.mark.parametrize("option", [True, {"mode": "reuse"}, None])
def test_the_setting_holds_where_a_request_says_nothing(option: Any) -> None:
    assert options.relink_share(given_option(option), Settings(relink=0.03)) == 0.03


def test_a_request_whose_rows_find_no_room_waits_for_a_batch_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(adder, "_result", lambda name: adders.Result[name])
    cache, admission, document = adders.setting(Limits(7, 10**6, 8, 10**6), Settings(relink=0.1))
    batch = adders.Adder(cache, None)
    head = adders.ids(70, 3)
    # Two names of the document stand before it now.
    head[10], head[30] = document[100], document[200]
    prompts = [head + document + adders.ids(20, 4) for _ in range(2)]
    first, second = (adders.request(ids, sampling_params=None) for ids in prompts)
    admission.add_one(adders.add_one_req, batch, first)
    assert admission.add_one(adders.add_one_req, batch, second).name == "OTHER"
    assert batch.can_run_list == [first]
    (window,) = admission.take(adders.batch_of([first]))
    assert (window.relinked, len(window.spans), window.unmet) == (2, 3, 0)
    admission.release()
    batch.can_run_list = []
    admission.add_one(adders.add_one_req, batch, second)
    assert batch.can_run_list == [second]


def test_rests_of_a_span_are_one_donor_no_shallower_than_the_rows_between_them() -> None:
    window = shuffled([20, 60, 180])
    assert len(window.spans) == 4
    assert planner._history(window) == [Moved(210, 400, 1, 1)]
    window.request.irm_moved = [Moved(0, 40, 2, 5)]
    window.start = 50
    assert planner._history(window) == [Moved(0, 40, 2, 5), Moved(210, 400, 1, 5)]
    other_span = window.spans[-1]._replace(start=410, end=429, delta=9)
    window.spans.append(other_span)
    assert planner._history(window)[1:] == [Moved(210, 400, 1, 5), Moved(410, 429, 1, 1)]


def test_ranks_that_plan_differently_do_not_wait_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, admission, document = adders.setting(Limits(2, 10**6, 8, 10**6), Settings(relink=0.1))
    head = adders.ids(70, 3)
    head[10] = document[100]
    window = admission._window(adders.Adder(cache, None), one := named(head + document))
    assert (window.unmet, len(window.spans)) == (1, 1)
    monkeypatch.setattr(finding, "agreed", lambda *_: False)
    window = admission._window(adders.Adder(cache, None), one)
    assert (window.unmet, window.spans) == (0, [])


def named(tokens: list[int]) -> Any:
    return adders.request([*tokens, *adders.ids(20, 4)], sampling_params=None)


def test_ids_of_any_size_are_counted_in_little_memory() -> None:
    tokens = np.array([2**31 - 1, 5, 2**31 - 1, 5])
    origins = [mentions.Origin(2, 4, 0)]
    assert mentions.new_mentions(tokens, origins, np.eye(1, dtype=bool)).tolist() == [2, 3]
