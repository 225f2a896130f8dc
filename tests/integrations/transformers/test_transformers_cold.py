"""Without reuse the engine computes what transformers computes, however the work is cut."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from irminsul.integrations.transformers import PICEngine, Sampling
from random_models import CONFIGS, VOCABULARY, make, plain_generate, plain_logits, random_tokens

NOISE = 2e-4
"""Largest difference of logits, whose spread is about 1.2, between two orders of fp32 sums."""


def engine(model, **options):
    torch.set_num_threads(1)
    return PICEngine(model, **{"capacity_tokens": 4096, "chunk_tokens": 97, **options})


@pytest.mark.parametrize("name", CONFIGS)
def test_equals_transformers(name):
    model = make(name)
    prompts = [random_tokens(length, seed=length) for length in (1, 7, 150, 333)]
    answers = engine(model).generate(prompts, max_new_tokens=5, logits="computed", reuse=False)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.tokens == plain_generate(model, prompt, 5)
        assert answer.logit_positions == list(range(len(prompt) + 4))
        expected = plain_logits(model, prompt + answer.tokens[:-1])
        torch.testing.assert_close(answer.logits, expected, atol=NOISE, rtol=0)


@settings(max_examples=8, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=5),
    seed=st.integers(0, 2**16),
    chunk=st.integers(20, 300),
    name=st.sampled_from(["deepseek_v3", "deepseek_v2", "qwen3"]),
)
def test_any_batch_and_chunk_size(lengths, seed, chunk, name):
    model = make(name)
    prompts = [random_tokens(length, seed + i) for i, length in enumerate(lengths)]
    options = {"max_new_tokens": 2, "logits": "generated", "reuse": False}
    answers = engine(model, chunk_tokens=chunk).generate(prompts, **options)
    for prompt, answer in zip(prompts, answers, strict=True):
        expected = plain_logits(model, prompt + answer.tokens[:1])[-2:]
        torch.testing.assert_close(answer.logits, expected, atol=NOISE, rtol=0)
        assert answer.tokens == expected.argmax(-1).tolist()
        assert answer.stats.computed == len(prompt)


def test_the_model_is_left_as_it_was():
    model = make("deepseek_v3")
    tokens = random_tokens(40, 3)
    before = plain_logits(model, tokens)
    attention = model.config._attn_implementation
    engine(model).generate([tokens])
    assert model.config._attn_implementation == attention
    assert torch.equal(plain_logits(model, tokens), before)


def test_the_model_is_left_as_it_was_after_an_error(monkeypatch):
    model = make("deepseek_v3")
    subject = engine(model, capacity_tokens=1024)
    monkeypatch.setattr(model.lm_head, "forward", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        subject.generate([random_tokens(300, 1)])
    monkeypatch.undo()
    assert "forward" not in vars(model.model.layers[0].self_attn)
    assert len(subject.generate([random_tokens(1000, 1)], max_new_tokens=1)[0].tokens) == 1


def test_a_stop_token_ends_an_answer():
    model = make("llama")
    prompt = random_tokens(30, 5)
    free = plain_generate(model, prompt, 6)
    answer = engine(model).generate([prompt], max_new_tokens=6, stop=[free[2]])[0]
    assert answer.tokens == free[: free.index(free[2]) + 1]


def test_nothing_is_generated_when_no_token_is_wanted():
    answer = engine(make("qwen2")).generate([random_tokens(9, 0)], max_new_tokens=0)[0]
    assert answer.tokens == []
    assert answer.logits is None


def test_scores_from_a_position_on():
    prompts = [random_tokens(120, 1), random_tokens(130, 2)]
    options = {"max_new_tokens": 2, "logits": "computed", "reuse": False}
    subject = engine(make("qwen3"))
    whole = subject.generate(prompts, **options)
    tails = subject.generate(prompts, logits_from=[110, 200], **options)
    assert tails[0].logit_positions == list(range(110, 121))
    assert torch.equal(tails[0].logits, whole[0].logits[110:])
    assert tails[1].logits is None
    assert tails[1].tokens == whole[1].tokens


def test_samples_do_not_depend_on_the_batch():
    subject = engine(make("deepseek_v2"))
    prompts = [random_tokens(20, seed) for seed in range(4)]
    warm = Sampling(temperature=1.0, top_k=50, top_p=0.9, seed=7)
    options = {"sampling": warm, "max_new_tokens": 6, "reuse": False, "record": False}
    together = subject.generate(prompts, **options)
    again = subject.generate(prompts, **options)
    alone = subject.generate(prompts[:1], **options)
    assert [a.tokens for a in together] == [a.tokens for a in again]
    assert alone[0].tokens == together[0].tokens
    other = Sampling(temperature=1.0, top_k=50, top_p=0.9, seed=8)
    changed = subject.generate(prompts, **{**options, "sampling": other})
    assert [a.tokens for a in changed] != [a.tokens for a in together]


def test_sampling_follows_the_probabilities():
    scores = torch.log(torch.tensor([0.1, 0.6, 0.25, 0.05]))
    generator = Sampling().generator(0)

    def share(sampling):
        drawn = [sampling.choose(scores, generator) for _ in range(2000)]
        return torch.bincount(torch.tensor(drawn), minlength=4) / 2000

    torch.testing.assert_close(share(Sampling(temperature=1.0)), scores.exp(), atol=0.06, rtol=0)
    cut = share(Sampling(temperature=1.0, top_k=2))
    torch.testing.assert_close(cut, torch.tensor([0, 0.706, 0.294, 0]), atol=0.06, rtol=0)
    nucleus = share(Sampling(temperature=1.0, top_p=0.7))
    torch.testing.assert_close(nucleus, torch.tensor([0, 0.706, 0.294, 0]), atol=0.06, rtol=0)
    assert Sampling().choose(scores, generator) == 1


def test_the_vocabulary_is_whole():
    assert make("mha").config.vocab_size == VOCABULARY
