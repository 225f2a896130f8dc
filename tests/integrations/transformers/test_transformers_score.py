"""Scores of continuations are those of whole prompts, and what is kept stays as it is."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from irminsul.errors import InvalidParams, InvalidTokens
from irminsul.integrations.transformers import PICEngine
from random_models import CONFIGS, POSITIONS, VOCABULARY, make, plain_logits, random_tokens

NOISE = 2e-4


def engine(model, **options):
    torch.set_num_threads(1)
    return PICEngine(model, **{"capacity_tokens": 4096, "chunk_tokens": 97, **options})


@pytest.mark.parametrize("name", CONFIGS)
def test_continuations_are_scored_as_whole_prompts(name):
    model = make(name)
    subject = engine(model)
    contexts = [random_tokens(200, 1), random_tokens(128, 2), random_tokens(30, 3)]
    subject.generate(contexts, max_new_tokens=0)
    pairs = [(i, random_tokens(length, 9)) for i, length in ((0, 5), (1, 150), (2, 1), (0, 70))]
    kept = subject.kept()
    found = subject.score([kept[i] for i, _ in pairs], [tokens for _, tokens in pairs])
    for (i, tokens), scores in zip(pairs, found, strict=True):
        expected = plain_logits(model, contexts[i] + tokens)[len(contexts[i]) :]
        torch.testing.assert_close(scores, expected, atol=NOISE, rtol=0)


@settings(max_examples=12, deadline=None)
@given(st.lists(st.integers(1, 90), min_size=1, max_size=9), st.integers(1, 130), st.integers(0, 3))
def test_little_room_makes_no_difference(lengths, context_len, spare_pages):
    """Continuations that do not fit together are scored one after the other."""
    model = make("deepseek_v3")
    context = random_tokens(context_len, 1)
    pages = -(-context_len // 64) + 3 + spare_pages
    subject = engine(model, capacity_tokens=64 * pages)
    wide = engine(model)
    for each in (subject, wide):
        each.generate([context], max_new_tokens=0)
    texts = [random_tokens(length, 5 + i) for i, length in enumerate(lengths)]
    (number,) = subject.kept()
    before = [subject.read_rows(number, layer).clone() for layer in range(2)]
    found = subject.score([number] * len(texts), texts)
    expected = wide.score(wide.kept() * len(texts), texts)
    for left, right in zip(found, expected, strict=True):
        torch.testing.assert_close(left, right, atol=NOISE, rtol=0)
    assert subject.kept() == [number]
    for layer, rows in enumerate(before):
        assert torch.equal(subject.read_rows(number, layer), rows)


def test_other_sequences_give_way():
    subject = engine(make("deepseek_v3"), capacity_tokens=64 * 4)
    subject.generate([random_tokens(100, 1)], max_new_tokens=0)
    subject.generate([random_tokens(100, 2)], max_new_tokens=0)
    subject.score([subject.kept()[1]], [random_tokens(60, 3)])
    assert len(subject.kept()) == 1


@pytest.mark.parametrize(
    ("sequences", "texts", "error", "message"),
    [
        ([7], [[1]], InvalidParams, "sequence 99999 is not kept"),
        ([1], [[]], InvalidTokens, "empty"),
        ([1], [[VOCABULARY]], InvalidTokens, "vocabulary"),
        ([1], [[1] * POSITIONS], InvalidParams, "positions"),
        ([1], [[1], [2]], InvalidParams, "one for each"),
        ([1], [[1] * 400], InvalidParams, "no room"),
    ],
)
def test_what_cannot_be_scored_is_refused(sequences, texts, error, message):
    subject = engine(make("llama"), capacity_tokens=256)
    subject.generate([random_tokens(90, 1)], max_new_tokens=0)
    (number,) = subject.kept()
    with pytest.raises(error, match=message):
        subject.score([number if s == 1 else 99_999 for s in sequences], texts)
    assert subject.kept() == [number]


def test_a_forgotten_sequence_is_no_donor():
    subject = engine(make("deepseek_v3"))
    text = random_tokens(300, 1)
    subject.generate([random_tokens(40, 2) + text, random_tokens(50, 3)], max_new_tokens=0)
    first, second = subject.kept()
    subject.forget([first, 12_345])
    assert subject.kept() == [second]
    (answer,) = subject.generate([random_tokens(90, 4) + text], max_new_tokens=0)
    assert answer.stats.reused == answer.stats.prefix == 0
