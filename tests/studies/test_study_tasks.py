"""Generated worlds: answers follow from the documents, and nothing asked was ever trained on."""

import itertools
from dataclasses import replace

import batches
import drafts
import numpy as np
import pytest
import tasks
import torch
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


@pytest.fixture(scope="module")
def source():
    return batches.Source(3, torch.device("cpu"))


def stages():
    return [replace(s, batch_tokens=4608) for s in drafts.curriculum(4608, 4096)]


def test_batches_depend_on_seed_index_and_stage_alone(source):
    stage = stages()[2]
    first, other = source.batch(stage, 5), source.batch(stage, 6)
    assert (first.tokens == batches.Source(3, torch.device("cpu")).batch(stage, 5).tokens).all()
    assert first.tokens.shape != other.tokens.shape or (first.tokens != other.tokens).any()


def asked_in(batch, row):
    """The questions of a row as the tasks state them; None where it was left out."""
    ids = batch.tokens[row].tolist()
    begins = [batch.tail, *(question.end for question in batch.asked)]
    for index, (begin, question) in enumerate(zip(begins, batch.asked, strict=False)):
        there = bool(batch.present[row, index])
        prompt, answer = ids[begin : question.first], ids[question.first : question.end]
        yield there, tasks.Question(question.kind, tuple(prompt), tuple(answer))


@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("index", range(4))
def test_answers_of_batches_follow_from_their_documents(source, number, index):
    batch = source.batch(stages()[number], index)
    asked = 0
    for row, ids in enumerate(batch.tokens):
        world = tasks.World((ids[1 : batch.tail].numpy(),), (), frozenset())
        assert ids[0] == tasks.BOS
        assert not any(tasks.HELD_OUT[a][b] for a, b in facts_in(world)[3])
        for place, (there, question) in enumerate(asked_in(batch, row)):
            part = batch.weights[row, batch.asked[place].first : batch.asked[place].end]
            assert ((part == 1.0) == there).all()
            if there:
                asked += 1
                assert solve(world, question) == question.answer
                assert steps_to(world, question) == batch.steps[row, place].tolist()
    assert asked > 0
    assert int((batch.weights == 1.0).sum()) == sum(
        int(batch.present[:, i].sum()) * (q.end - q.first) for i, q in enumerate(batch.asked)
    )


def steps_to(world, question):
    """One, two and three links on from what is asked for, no further than to the answer."""
    links, variables, tools, _ = facts_in(world)
    table = {**links, **variables, **{name: call[0] for name, call in tools.items()}}
    at, found = question.prompt[1], []
    for _ in range(3):
        at = question.answer[0] if at == question.answer[0] else table[at]
        found.append(at)
    return found


def test_scores_count_whole_answers():
    asked = [drafts.Asked("a", 2, 4), drafts.Asked("a", 5, 7), drafts.Asked("a", 7, 8)]
    present = torch.tensor([[True, True, False]])
    blank = torch.zeros(1, 8)
    batch = batches.Batch(blank, blank, 1, asked, present, torch.zeros(1, 3, 3))
    right = torch.ones(1, 8, dtype=torch.bool)
    right[0, 6:] = False
    assert batches.score(right, batch) == {"a": 0.5}


@pytest.mark.parametrize("number", [2, 4, 7])
def test_chains_for_reading_are_told_from_their_end(number):
    """At each fact that leads on, what it leads to stands before it, and `read` says what."""
    reading = batches.Source(3, torch.device("cpu"), reading=True)
    found = 0
    for index in range(3):
        batch = reading.batch(stages()[number], index)
        if batch.read is None:
            continue
        for row, ids in enumerate(batch.tokens.tolist()):
            world = tasks.World((batch.tokens[row, 1 : batch.tail].numpy(),), (), frozenset())
            links, variables, _, _ = facts_in(world)
            table = {**links, **variables}
            for at, there, steps in zip(
                batch.read.at[row].tolist(),
                batch.read.present[row].tolist(),
                batch.read.steps[row].tolist(),
                strict=True,
            ):
                if not there:
                    continue
                found += 1
                assert ids[at + 1] == tasks.DOT
                assert steps == [table[ids[at]], table.get(table[ids[at]], steps[0])]
                assert ids.index(ids[at], 0, at) < at - 3
    assert found > 0


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_backwards_worlds_tell_the_end_of_a_chain_first(seed):
    shape = tasks.Shape(2400, 8, 6, 0.1, backwards=True)
    world = tasks.make_world(
        np.random.default_rng(seed), FILLER, shape, EVEN, held_out=True, each=tasks.KINDS
    )
    links = facts_in(world)[0]
    (question,) = [q for q in world.questions if q.kind == "hop3"]
    names = [question.prompt[1]]
    for _ in range(3):
        names.append(links[names[-1]])
    text = np.concatenate(world.documents).tolist()
    starts = [
        next(i for i in range(len(text)) if text[i : i + 2] == list(pair))
        for pair in itertools.pairwise(names)
    ]
    assert starts == sorted(starts, reverse=True)
