"""Rows whose earlier mentions changed are found as a plain search finds them, and made anew."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from irminsul.errors import InvalidParams
from irminsul.integrations.transformers import PICEngine, RowPiece, Span
from irminsul.integrations.transformers.mentions import new_mentions, relink, without
from irminsul.mentions import MOST
from random_models import make, random_tokens


@st.composite
def prompts(draw):
    """Ids from a small vocabulary, and spans over parts of them from two kept sequences."""
    tokens = np.array(draw(st.lists(st.integers(0, 30), min_size=2, max_size=120)), np.uint32)
    spans, at = [], 0
    while at < len(tokens) - 1:
        at += draw(st.integers(0, 8))
        length = min(draw(st.integers(1, 20)), len(tokens) - 1 - at)
        if length < 1:
            break
        half = draw(st.integers(0, length - 1))
        first = RowPiece(draw(st.integers(1, 2)), draw(st.integers(0, 60)), length - half)
        pieces = (first, RowPiece(2, draw(st.integers(0, 60)), half)) if half else (first,)
        depth = draw(st.integers(1, 2))
        spans.append(Span(at, pieces, at - first.start, 1, depth))
        at += length
    exact = draw(st.integers(0, min(2, len(spans))))
    return tokens, spans[:exact], spans[exact:]


def searched(tokens, prefix, spans):
    """Position by position, as the words say it."""
    origin = {}
    for number, span in enumerate([*prefix, *spans]):
        rows = [(p.sequence, p.start + i) for p in span.pieces for i in range(p.length)]
        origin |= {span.target + i: (*row, span.depth, number) for i, row in enumerate(rows)}
    found = []
    for at in range(len(tokens)):
        often = int((tokens == tokens[at]).sum())
        if origin.get(at, (0, 0, 0, -1))[3] < len(prefix) or often > MOST:
            continue
        sequence, row, depth, number = origin[at]
        for before in range(at):
            if tokens[before] != tokens[at]:
                continue
            other = origin.get(before)
            seen = other is not None and other[0] == sequence and other[1] < row
            if not (seen and (depth <= 1 or other[3] == number)):
                found.append((often, at))
                break
    return [at for _, at in sorted(found)]


@given(prompts())
def test_new_mentions_are_those_of_a_plain_search(case):
    tokens, prefix, spans = case
    assert new_mentions(tokens, prefix, spans).tolist() == searched(tokens, prefix, spans)


@given(prompts(), st.floats(0, 1))
def test_relink_cuts_the_rarest_within_its_share(case, share):
    tokens, prefix, spans = case
    left = relink(tokens, prefix, spans, share)
    before = {p for span in spans for p in range(span.target, span.end)}
    after = {p for span in left for p in range(span.target, span.end)}
    wanted = searched(tokens, prefix, spans)[: round(share * len(before))]
    assert before - after == set(wanted)
    assert after <= before


def test_without_takes_a_range_over_several_spans():
    spans = [Span(0, (RowPiece(1, 0, 10),), 0), Span(12, (RowPiece(1, 30, 10),), -18)]
    left = without(spans, [(8, 14), (20, 21)])
    assert [(span.target, span.end) for span in left] == [(0, 8), (14, 20), (21, 22)]
    assert left[1].pieces == (RowPiece(1, 32, 6),)


def words(length, seed):
    """Text of twenty ids, each of them common."""
    return [token % 20 for token in random_tokens(length, seed)]


def document(seed, name):
    """Words with one name in the middle."""
    text = words(120, seed)
    text[60] = name
    return text


@pytest.mark.parametrize("kind", ["deepseek_v3", "llama"])
def test_a_row_is_computed_again_when_its_name_has_come_before(kind):
    torch.set_num_threads(1)
    one, two = document(1, 290), document(2, 290)
    model = make(kind)
    plain, linked = PICEngine(model), PICEngine(model, relink=0.05)
    header, other = words(70, 8), words(70, 9)
    for engine in (plain, linked):
        engine.generate([header + one + two], max_new_tokens=0)
    prompt = other + two + one + [291, 292, 293]
    spans = plain.plan(prompt)
    again = len(other) + len(two) + 60
    assert any(span.target <= again < span.end for span in spans)
    cut = linked.plan(prompt)
    gone = {p for s in spans for p in range(s.target, s.end)}
    gone -= {p for s in cut for p in range(s.target, s.end)}
    assert again in gone
    assert len(gone) <= round(0.05 * sum(span.length for span in spans))
    (mine,) = linked.generate([prompt], logits="generated", record=False)
    (same,) = plain.generate([prompt], logits="generated", record=False, reuse=lambda _: cut)
    torch.testing.assert_close(mine.logits, same.logits, rtol=0, atol=0)
    assert mine.stats.reused == sum(span.length for span in cut)


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_share_outside_0_to_1_is_refused(share):
    with pytest.raises(InvalidParams, match="relink is"):
        PICEngine(make("llama"), relink=share)
