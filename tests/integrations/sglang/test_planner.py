"""Spans, limits and the trimmed batch, on plain objects in place of SGLang's."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from irminsul import Namespace, Policy, Registry
from irminsul.integrations.sglang.admission import finding
from irminsul.integrations.sglang.batch import planner
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.spans import BatchPlan, Limits, Span, Window
from irminsul.integrations.sglang.tree.mirror import TreeMirror

NAMESPACE = Namespace(model="m")
LIMITS = Limits(rows=64, row_tokens=10**6, min_span=8, positions=10**6)


class Key:
    """As much of a radix key as the mirror reads."""

    def __init__(self, ids: list[int]) -> None:
        self.token_ids = array("q", ids)

    def __len__(self) -> int:
        return len(self.token_ids)

    def raw_token_ids(self) -> array[int]:
        return self.token_ids


class Node:
    """A radix-tree node whose rows are slots ``first, first + 1, ...``."""

    def __init__(self, ids: list[int], parent: Any, first: int) -> None:
        self.key = Key(ids)
        self.parent = parent
        self.value = torch.arange(first, first + len(ids))


def ids(count: int, seed: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(2, 2**31, count)]


def request(tokens: list[int], **fields: Any) -> Any:
    return SimpleNamespace(
        rid="r",
        full_untruncated_fill_ids=array("q", tokens),
        retracted_stain=False,
        cached_tokens=0,
        cached_tokens_device=0,
        **fields,
    )


def mirrored(document: list[int], head: int = 40, first: int = 1000) -> tuple[TreeMirror, Node]:
    mirror = TreeMirror(Registry(1 << 16, policy=Policy(min_span=8)), Metrics(60.0))
    root = object()
    leaf = Node(ids(head, 99) + document, root, first)
    mirror.record(leaf, root, NAMESPACE, [])
    return mirror, leaf


def batch_of(windows: list[Window], first: int = 5000) -> Any:
    lengths = [window.end - window.start for window in windows]
    tokens = [
        token
        for window in windows
        for token in window.request.full_untruncated_fill_ids[window.start : window.end]
    ]
    return SimpleNamespace(
        reqs=[window.request for window in windows],
        prefix_lens=[window.start for window in windows],
        extend_lens=lengths,
        extend_num_tokens=sum(lengths),
        prefill_input_ids_cpu=torch.tensor(tokens),
        out_cache_loc=torch.arange(first, first + sum(lengths)),
    )


def trim(batch: Any, windows: list[Window]) -> BatchPlan:
    trimmed = planner.prepare(batch, windows)
    planner.trim(batch, windows, trimmed, Metrics(60.0))
    return trimmed.plan


spans = st.builds(
    lambda start, counts: Span(
        start, start + sum(counts), 3, 0, 0, tuple(("node", 10, count) for count in counts)
    ),
    st.integers(0, 50),
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
)


@given(spans, st.data())
def test_a_part_of_a_span_names_the_rows_at_its_positions(span: Span, data: Any) -> None:
    start = data.draw(st.integers(span.start, span.end - 1))
    end = data.draw(st.integers(start + 1, span.end))
    every = [(i, at + k) for i, (_, at, n) in enumerate(span.rows) for k in range(n)]
    part = span.part(start, end)
    offsets = [at + k for _, at, n in part.rows for k in range(n)]
    assert offsets == [at for _, at in every][start - span.start : end - span.start]
    assert (part.start, part.end, part.length) == (start, end, end - start)


@given(spans, st.integers(0, 100), st.integers(0, 30))
def test_what_is_cut_out_of_a_span_is_gone(span: Span, start: int, length: int) -> None:
    left = span.without(start, start + length)
    covered = [position for part in left for position in range(part.start, part.end)]
    wanted = [p for p in range(span.start, span.end) if not start <= p < start + length]
    assert covered == wanted
    assert all(sum(n for _, _, n in part.rows) == part.length for part in left)


def test_a_moved_document_is_found_and_the_batch_trimmed() -> None:
    document = ids(300, 1)
    mirror, leaf = mirrored(document)
    prompt = ids(70, 2) + document + ids(20, 3)
    other = ids(30, 4)
    windows = [Window(request(prompt), 0, len(prompt)), Window(request(other), 0, len(other))]
    batch = batch_of(windows)
    finding.find_spans(windows[0], mirror, NAMESPACE, LIMITS, Metrics(60.0))
    finding.cut_to_limits(windows, LIMITS, Metrics(60.0))
    plan = trim(batch, windows)
    assert plan.holes == [[(0, 70), (370, 390)], [(0, 30)]]
    assert batch.prefill_input_ids_cpu.tolist() == prompt[:70] + prompt[370:] + other
    assert batch.out_cache_loc.tolist() == [*range(5000, 5070), *range(5370, 5420)]
    assert plan.positions.tolist() == [*range(70), *range(370, 390), *range(30)]
    assert plan.source_slots.tolist() == leaf.value[40:340].tolist()
    assert plan.target_slots.tolist() == list(range(5070, 5370))
    assert set(plan.deltas.tolist()) == {30}
    assert (batch.extend_lens, batch.extend_num_tokens) == ([90, 30], 120)
    assert [p + n for p, n in zip(batch.prefix_lens, batch.extend_lens, strict=True)] == [390, 30]
    assert windows[0].request.cached_tokens == windows[0].request.irm_reused == 300
    assert windows[1].request.cached_tokens == 0
    assert windows[0].request.irm_moved[0].hops == 1
    assert windows[0].request.irm_moved[0].depth == 1


@pytest.mark.parametrize("end", [70, 71, 72, 100, 371, 390])
def test_the_last_token_of_a_round_is_always_computed(end: int) -> None:
    document = ids(300, 1)
    mirror, _ = mirrored(document)
    prompt = ids(70, 2) + document + ids(20, 3)
    window = Window(request(prompt), 0, end)
    finding.find_spans(window, mirror, NAMESPACE, LIMITS, Metrics(60.0))
    assert all(span.end < end for span in window.spans)
    assert window.holes()[-1][1] == end
    assert sum(stop - start for start, stop in window.holes()) + window.reused == end


def test_another_namespace_finds_nothing() -> None:
    document = ids(300, 1)
    mirror, _ = mirrored(document)
    window = Window(request(ids(70, 2) + document), 0, 370)
    finding.find_spans(window, mirror, Namespace(model="n"), LIMITS, Metrics(60.0))
    assert window.spans == []


def test_a_node_that_no_longer_holds_the_text_is_a_miss() -> None:
    document = ids(300, 1)
    mirror, leaf = mirrored(document)
    leaf.key.token_ids[200] += 1
    metrics = Metrics(60.0)
    window = Window(request(ids(70, 2) + document + ids(9, 3)), 0, 379)
    finding.find_spans(window, mirror, NAMESPACE, LIMITS, metrics)
    assert window.spans == []
    assert metrics.fallbacks["stale"] == 1


def test_positions_beyond_the_rotation_table_are_computed() -> None:
    document = ids(300, 1)
    mirror, _ = mirrored(document)
    limits = Limits(rows=64, row_tokens=10**6, min_span=8, positions=350)
    window = Window(request(ids(70, 2) + document + ids(9, 3)), 0, 379)
    finding.find_spans(window, mirror, NAMESPACE, limits, Metrics(60.0))
    assert window.spans == []


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=12),
    st.integers(1, 8),
    st.integers(0, 4000),
)
def test_limits_hold_and_the_longest_spans_stay(
    lengths: list[int], rows: int, row_tokens: int
) -> None:
    window = Window(request([]), 0, 0)
    for length in lengths:
        start = window.end + 10
        window.spans.append(Span(start, start + length, 1, 0, 0, (("node", 0, length),)))
        window.end = start + length
    window.end += 5
    finding.cut_to_limits([window], Limits(rows, row_tokens, 4, 10**6), Metrics(60.0))
    kept = [span.length for span in window.spans]
    holes = window.holes()
    if kept:
        assert len(holes) <= rows
        assert sum(start for start, _ in holes) <= row_tokens
    # What a batch is cut to and what it leaves to others is reckoned alike.
    left = Limits(rows, row_tokens, 4, 10**6).less([window], 0)
    assert not kept or (left.rows >= 0 and left.row_tokens >= 0)
    usable = sorted(length for length in lengths if length >= 4)
    assert sorted(kept) == usable[len(usable) - len(kept) :]


def test_a_failure_before_the_end_leaves_the_batch_alone() -> None:
    document = ids(300, 1)
    mirror, leaf = mirrored(document)
    prompt = ids(70, 2) + document + ids(20, 3)
    window = Window(request(prompt), 0, len(prompt))
    batch = batch_of([window])
    finding.find_spans(window, mirror, NAMESPACE, LIMITS, Metrics(60.0))
    leaf.value = None
    before = dict(vars(batch))
    with pytest.raises(AttributeError):
        planner.prepare(batch, [window])
    assert all(value is before[name] for name, value in vars(batch).items())
    assert window.request.cached_tokens == 0


def test_a_retracted_request_is_not_counted_twice() -> None:
    document = ids(300, 1)
    mirror, _ = mirrored(document)
    again = request(ids(70, 2) + document + ids(20, 3))
    again.retracted_stain = True
    window = Window(again, 0, 390)
    finding.find_spans(window, mirror, NAMESPACE, LIMITS, Metrics(60.0))
    trim(batch_of([window]), [window])
    assert again.cached_tokens == 0
    assert again.irm_reused == 300


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(8, 60)), max_size=6),
    st.integers(1, 20),
    st.integers(1, 120),
)
def test_a_window_reaches_as_far_as_its_budget_of_computed_tokens(
    parts: list[tuple[int, int]], tail: int, budget: int
) -> None:
    window = Window(request([]), 7, 7)
    for hole, length in parts:
        start = window.end + hole
        window.spans.append(Span(start, start + length, 1, 0, 0, (("node", 0, length),)))
        window.end = start + length
    window.end += tail

    def computed(end: int) -> int:
        cut = Window(window.request, window.start, window.end, list(window.spans))
        cut.cut(end)
        return end - cut.start - cut.reused

    fitting = [end for end in range(8, window.end + 1) if computed(end) <= budget]
    assert window.reach(budget) == max(fitting)


def test_what_was_found_is_followed_while_nothing_is_recorded() -> None:
    document = ids(300, 1)
    mirror, leaf = mirrored(document)
    prompt = request(ids(70, 2) + document + ids(20, 3))
    first = Window(prompt, 0, 390)
    finding.find_spans(first, mirror, NAMESPACE, LIMITS, Metrics(60.0))
    lookups = mirror.registry.stats()["lookups"]
    later = Window(prompt, 100, 390)
    finding.find_spans(later, mirror, NAMESPACE, LIMITS, Metrics(60.0))
    assert mirror.registry.stats()["lookups"] == lookups
    assert [(span.start, span.end) for span in later.spans] == [(100, 370)]
    assert later.spans[0].rows == ((leaf, 70, 270),)
    mirror.version += 1
    finding.find_spans(Window(prompt, 100, 390), mirror, NAMESPACE, LIMITS, Metrics(60.0))
    assert mirror.registry.stats()["lookups"] == lookups + 1


def test_rows_are_followed_through_splits_and_not_beyond_a_deletion() -> None:
    document = ids(300, 1)
    mirror, leaf = mirrored(document)
    window = Window(request(ids(70, 2) + document + ids(20, 3)), 0, 390)
    finding.find_spans(window, mirror, NAMESPACE, LIMITS, Metrics(60.0))
    slots = [int(s) for node, at, n in window.spans[0].rows for s in node.value[at : at + n]]
    for at in (150, 90):
        split(mirror, leaf, at)
    finding.follow(window, mirror, Metrics(60.0))
    rows = window.spans[0].rows
    assert len(rows) == 3
    assert [int(s) for node, at, n in rows for s in node.value[at : at + n]] == slots
    metrics = Metrics(60.0)
    mirror.delete(leaf)
    finding.follow(window, mirror, metrics)
    assert window.spans == []
    assert metrics.counts["evicted_spans"] == 1


def split(mirror: TreeMirror, leaf: Node, at: int) -> None:
    """Give the first `at` rows of `leaf` to a new parent, as the radix tree does."""
    head = Node(list(leaf.key.token_ids[:at]), leaf.parent, 0)
    head.value, leaf.value = leaf.value[:at], leaf.value[at:]
    leaf.key = Key(list(leaf.key.token_ids[at:]))
    leaf.parent = head
    mirror.split(leaf, head, head.parent)
