"""Generated worlds: answers follow from the documents, and nothing asked was ever trained on."""

import itertools

import batches
import numpy as np
import pytest
import tasks
from hypothesis import given, settings
from hypothesis import strategies as st

FILLER = tasks.Filler(length=1 << 14)
EVEN = dict.fromkeys(tasks.KINDS, 1.0)


def facts_in(world):
    """Read the facts out of the documents' tokens, as somebody would who knows the markers."""
    text = np.concatenate(world.documents).tolist()
    links, variables, tools, pairs = {}, {}, {}, []
    for i, token in enumerate(text):
        if token in (tasks.LINK, tasks.SET):
            assert text[i + 3] == tasks.DOT
            (links if token == tasks.LINK else variables)[text[i + 1]] = text[i + 2]
            pairs.append((text[i + 1], text[i + 2]))
        elif token == tasks.TOOL:
            assert text[i + 10] == tasks.DOT
            tools[text[i + 1]] = tuple(text[i + 2 : i + 10])
            pairs.append((text[i + 1], text[i + 2]))
    return links, variables, tools, pairs


def solve(world, question):
    links, variables, tools, _ = facts_in(world)
    ask, *keys = question.prompt
    if ask == tasks.ASKT:
        return (*tools[keys[0]], tasks.DOT)
    if ask == tasks.ASKM:
        return (*(links[key] for key in keys[:3]), tasks.DOT)
    value = keys[0]
    if ask == tasks.ASKV:
        while value in variables:
            value = variables[value]
    else:
        for _ in range(ask - tasks.ASK1 + 1):
            value = links[value]
    return (value, tasks.DOT)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), held_out=st.booleans(), questions=st.integers(1, 20))
def test_answers_follow_from_the_documents(seed, held_out, questions):
    shape = tasks.Shape(2000, 6, questions, 0.1)
    world = tasks.make_world(np.random.default_rng(seed), FILLER, shape, EVEN, held_out=held_out)
    assert len(world.tokens()) == 2000
    for question in world.questions:
        assert solve(world, question) == question.answer


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_is_asked_in_evaluation_is_never_trained_on(seed):
    rng = np.random.default_rng(seed)
    trained = tasks.make_world(rng, FILLER, tasks.Shape(1500, 5, 12, 0.2), EVEN)
    assert not any(tasks.HELD_OUT[a][b] for a, b in facts_in(trained)[3])
    asked = tasks.make_world(
        rng, FILLER, tasks.Shape(1500, 5, 6, 0.1), EVEN, held_out=True, each=tasks.KINDS
    )
    assert [question.kind for question in asked.questions] == list(tasks.KINDS)
    held = {(a, b) for a, b in facts_in(asked)[3] if tasks.HELD_OUT[a][b]}
    links, variables, tools, _ = facts_in(asked)
    for question in asked.questions:
        keys = [t for t in question.prompt[1:] if t in tasks.NAMES]
        table = {tasks.ASKV: variables, tasks.ASKT: tools}.get(question.prompt[0], links)
        for key in keys:
            value = table[key]
            assert (key, value[0] if isinstance(value, tuple) else value) in held


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_links_of_a_chain_stand_in_different_documents(seed):
    shape = tasks.Shape(2400, 8, 6, 0.1)
    world = tasks.make_world(
        np.random.default_rng(seed), FILLER, shape, EVEN, held_out=True, each=tasks.KINDS
    )
    links = facts_in(world)[0]
    (question,) = [q for q in world.questions if q.kind == "hop3"]
    names = [question.prompt[1]]
    for _ in range(3):
        names.append(links[names[-1]])
    places = [
        next(i for i, text in enumerate(world.documents) if _holds(text, pair))
        for pair in itertools.pairwise(names)
    ]
    assert len(set(places)) == 3


def _holds(text, pair):
    return any(tuple(text[i : i + 2]) == pair for i in range(len(text) - 1))


def test_held_out_pairs_follow_no_rule():
    """About a sixteenth of all pairs, in every row, column and residue alike."""
    table = np.array([list(row) for row in tasks.HELD_OUT])
    assert abs(table.mean() - 1 / 16) < 0.001
    assert table.mean(axis=0).max() < 0.1
    assert table.mean(axis=1).max() < 0.1
    a, b = np.indices(table.shape)
    for modulus in (2, 3, 7, 8, 16):
        shares = [table[(b - a) % modulus == rest].mean() for rest in range(modulus)]
        assert max(shares) - min(shares) < 0.005


def test_facts_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"do not fit|too few"):
        tasks.make_world(np.random.default_rng(0), FILLER, tasks.Shape(300, 1, 30, 0.0), EVEN)


def test_batches_depend_on_seed_index_and_stage_alone():
    stage = batches.replace(batches.curriculum(4608, 4096)[2], batch_tokens=2048)
    first = batches.make_batch(stage, 3, 5, FILLER)
    again = batches.make_batch(stage, 3, 5, FILLER)
    other = batches.make_batch(stage, 3, 6, FILLER)
    assert (first.tokens == again.tokens).all()
    assert first.tokens.shape != other.tokens.shape or (first.tokens != other.tokens).any()


@pytest.mark.parametrize("stage", range(7))
def test_weights_mark_the_answers(stage):
    chosen = batches.replace(batches.curriculum(4608, 4096)[stage], batch_tokens=4608)
    batch = batches.make_batch(chosen, 0, 0, FILLER)
    marked = sum(end - first for _, first, end, _ in batch.spans)
    assert int((batch.weights == 1.0).sum()) == marked > 0
    assert float(batch.weights[batch.tokens == tasks.PAD].sum()) == 0.0
    for row, first, end, _ in batch.spans:
        assert batch.tokens[row, end - 1] == tasks.DOT
        assert first > 0


def test_scores_count_whole_answers():
    import torch

    batch = batches.Batch(torch.zeros(1, 8), torch.zeros(1, 8), [(0, 2, 4, "a"), (0, 5, 7, "a")])
    right = torch.ones(1, 7, dtype=torch.bool)
    right[0, 5] = False
    assert batches.score(right, batch) == {"a": 0.5}
