"""Rows that are taken over are the right rows, at the right place, and holes see all of them."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from irminsul import Policy
from irminsul.errors import InvalidParams, RegistryFull
from irminsul.integrations.transformers import PICEngine, RowPiece, Span
from random_models import CONFIGS, LATENT, make, plain_logits, random_tokens

NOISE = 2e-4


def engine(model, **options):
    torch.set_num_threads(1)
    return PICEngine(model, **{"capacity_tokens": 8192, "chunk_tokens": 97, **options})


def kept_rows(subject, layer):
    return subject.read_rows(subject.kept()[-1], layer)


@pytest.mark.parametrize("name", CONFIGS)
def test_an_exact_prefix_changes_nothing(name):
    model = make(name)
    subject = engine(model)
    first = random_tokens(200, 1)
    subject.generate([first], max_new_tokens=1)
    longer = first + random_tokens(60, 2)
    answer = subject.generate([longer], max_new_tokens=1, logits="computed")[0]
    assert answer.stats.prefix == 200
    assert answer.stats.depth == 0
    expected = plain_logits(model, longer)[200:]
    torch.testing.assert_close(answer.logits, expected, atol=NOISE, rtol=0)


@pytest.mark.parametrize("name", CONFIGS)
def test_one_layer_knows_no_context(name):
    """With one layer a row depends on its token and position alone, so any reuse is exact."""
    model = make(name, layers=1)
    subject = engine(model)
    document = random_tokens(300, 1)
    subject.generate([random_tokens(50, 2) + document], max_new_tokens=0)
    prompt = random_tokens(183, 3) + document + random_tokens(20, 4)
    answer = subject.generate([prompt], max_new_tokens=1, logits="computed")[0]
    assert answer.stats.reused >= 290
    assert answer.stats.depth == 1
    expected = plain_logits(model, prompt)[answer.logit_positions]
    torch.testing.assert_close(answer.logits, expected, atol=NOISE, rtol=0)


@pytest.mark.parametrize("name", CONFIGS)
def test_rows_of_the_first_layer_equal_computed_ones(name):
    model = make(name)
    subject = engine(model)
    document = random_tokens(300, 1)
    subject.generate([random_tokens(50, 2) + document], max_new_tokens=0)
    prompt = random_tokens(183, 3) + document + random_tokens(20, 4)
    subject.generate([prompt], max_new_tokens=0)
    moved = [kept_rows(subject, layer) for layer in range(3)]
    subject.generate([prompt], max_new_tokens=0, reuse=False)
    cold = [kept_rows(subject, layer) for layer in range(3)]
    torch.testing.assert_close(moved[0], cold[0], atol=1e-4, rtol=0)
    # Deeper rows carry the donor's context: were they equal too, nothing would have been reused.
    assert float((moved[2] - cold[2]).abs().max()) > 0.01


@pytest.mark.parametrize("name", LATENT)
def test_c_kv_is_copied_bit_for_bit(name):
    subject = engine(make(name))
    document = random_tokens(300, 1)
    subject.generate([random_tokens(50, 2) + document], max_new_tokens=0)
    donor = subject.kept()[-1]
    prompt = random_tokens(183, 3) + document + [5]
    (span,) = subject.plan(prompt)
    subject.generate([prompt], max_new_tokens=0)
    piece = span.pieces[0]
    for layer in range(3):
        before = subject.read_rows(donor, layer)[piece.start : piece.start + piece.length]
        after = kept_rows(subject, layer)[span.target : span.end]
        assert torch.equal(after[:, :512], before[:, :512])
        assert not torch.equal(after[:, 512:], before[:, 512:])
        assert torch.allclose(after[:, 512:].norm(dim=1), before[:, 512:].norm(dim=1), rtol=1e-5)


@pytest.mark.parametrize("name", ["deepseek_v3", "llama"])
def test_rows_that_stay_are_copied_bit_for_bit(name):
    subject = engine(make(name))
    head, body = random_tokens(40, 1), random_tokens(300, 2)
    subject.generate([head + body], max_new_tokens=0)
    donor = subject.kept()[-1]
    prompt = random_tokens(40, 3) + body + [5]
    answer = subject.generate([prompt], max_new_tokens=0)[0]
    assert answer.stats.reused > 250
    (span,) = [s for s in subject.plan(prompt) if s.pieces[0].sequence == donor] or [None]
    for layer in range(3):
        assert torch.equal(
            kept_rows(subject, layer)[60:330], subject.read_rows(donor, layer)[60:330]
        )
    assert span is None or span.rotation == 0


@settings(max_examples=12, deadline=None)
@given(
    edges=st.lists(st.integers(0, 299), min_size=2, max_size=12, unique=True),
    chunk=st.integers(20, 200),
    name=st.sampled_from(["deepseek_v3", "deepseek_v2", "mistral", "mha"]),
)
def test_any_holes_in_exact_rows_give_the_cold_answer(edges, chunk, name):
    """Rows of the very same prompt are exact, so holes computed between them must be too."""
    model = make(name)
    subject = engine(model, chunk_tokens=chunk)
    prompt = random_tokens(300, 9)
    subject.generate([prompt], max_new_tokens=0)
    donor = subject.kept()[-1]
    edges = sorted(edges)[: len(edges) // 2 * 2]
    spans = [
        Span(start, (RowPiece(donor, start, end - start),), 0)
        for start, end in zip(edges[::2], edges[1::2], strict=True)
    ]
    answer = subject.generate([prompt], reuse=lambda _: spans, max_new_tokens=2, logits="computed")[
        0
    ]
    expected = plain_logits(model, prompt + answer.tokens[:1])[answer.logit_positions]
    torch.testing.assert_close(answer.logits, expected, atol=NOISE, rtol=0)
    assert answer.stats.reused == sum(span.length for span in spans)


@settings(max_examples=20, deadline=None)
@given(
    shift=st.integers(0, 400),
    pieces=st.lists(st.integers(32, 120), min_size=1, max_size=4),
    seed=st.integers(0, 2**16),
)
def test_any_shift_is_exact_in_one_layer(shift, pieces, seed):
    model = make("deepseek_v3", layers=1)
    subject = engine(model)
    parts = [random_tokens(length, seed + i) for i, length in enumerate(pieces)]
    donors = [random_tokens(40, seed + 50) + part for part in parts]
    subject.generate(donors, max_new_tokens=0, reuse=False)
    prompt = random_tokens(shift + 1, seed + 99)
    for part in reversed(parts):
        prompt = prompt + part + random_tokens(3, seed + 98)
    answer = subject.generate([prompt], max_new_tokens=1, logits="computed")[0]
    expected = plain_logits(model, prompt)[answer.logit_positions]
    torch.testing.assert_close(answer.logits, expected, atol=NOISE, rtol=0)


def test_naive_reuse_is_another_thing():
    """Without the rotation the same plan gives other scores: the tests above can fail."""
    model = make("deepseek_v3", layers=1)
    subject = engine(model)
    document = random_tokens(300, 1)
    subject.generate([random_tokens(50, 2) + document], max_new_tokens=0)
    prompt = random_tokens(183, 3) + document + [5]
    still = [
        Span(span.target, span.pieces, 0, span.hops, span.depth) for span in subject.plan(prompt)
    ]
    answer = subject.generate([prompt], reuse=lambda _: still, max_new_tokens=1, logits="generated")
    expected = plain_logits(model, prompt)[-1:]
    assert float((answer[0].logits - expected).abs().max()) > 100 * NOISE


def test_prefix_mode_never_takes_approximate_rows():
    subject = engine(make("deepseek_v3"))
    document = random_tokens(300, 1)
    subject.generate([random_tokens(50, 2) + document], max_new_tokens=0)
    prompt = random_tokens(90, 3) + document
    assert subject.generate([prompt], max_new_tokens=0)[0].stats.depth == 1
    exact = subject.generate([[*prompt, 1, 2]], max_new_tokens=0, reuse="prefix", record=False)[0]
    assert exact.stats.prefix < 150
    assert exact.stats.depth == 0
    whole = subject.generate([[*prompt, 1, 2]], max_new_tokens=0)[0]
    assert whole.stats.prefix == 390
    assert whole.stats.depth == 1


def test_history_of_rows_is_recorded():
    """Rows that were taken over once stand on approximation, so a strict policy leaves them."""
    subject = engine(make("deepseek_v3"), policy=Policy(max_depth=0))
    document = random_tokens(300, 1)
    subject.generate([random_tokens(50, 2) + document], max_new_tokens=0)
    first = subject.generate([random_tokens(90, 3) + document], max_new_tokens=0)[0]
    assert first.stats.depth == 1
    subject._store.forget(subject.kept()[0])
    second = subject.generate([random_tokens(131, 4) + document], max_new_tokens=0)[0]
    assert second.stats.reused == 0


def test_tenants_share_nothing():
    subject = engine(make("llama"))
    prompt = random_tokens(300, 1)
    subject.generate([prompt], max_new_tokens=0, tenant="a")
    assert subject.generate([prompt], max_new_tokens=0, tenant="b")[0].stats.computed == 300
    assert subject.generate([prompt], max_new_tokens=0, tenant="a")[0].stats.prefix == 299
    both = subject.generate([prompt, prompt], max_new_tokens=0, tenant=["c", "a"])
    assert [answer.stats.prefix for answer in both] == [0, 299]


def test_recorded_answers_are_reused():
    subject = engine(make("qwen2"))
    prompt = random_tokens(100, 1)
    answer = subject.generate([prompt], max_new_tokens=8)[0]
    turn = prompt + answer.tokens + random_tokens(30, 2)
    # All new tokens but the last have rows.
    assert subject.generate([turn], max_new_tokens=0)[0].stats.prefix == 107


def test_nothing_is_kept_when_not_asked_to():
    subject = engine(make("qwen2"))
    subject.generate([random_tokens(100, 1)], record=False)
    assert subject.kept() == []
    assert subject.stats()["kept_tokens"] == 0
    free = subject._store.pages.free
    assert free == subject._store.pages.count


@settings(max_examples=10, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 500), min_size=1, max_size=12),
    seed=st.integers(0, 100),
    new=st.integers(0, 3),
)
def test_little_room_means_forgetting_not_failing(lengths, seed, new):
    """Whatever arrives, pages are owned once, and every prompt is answered as if alone."""
    model = make("deepseek_v2", layers=1)
    subject = engine(model, capacity_tokens=640)
    text = random_tokens(600, seed)
    prompts = [text[len(text) - length :] for length in lengths]
    answers = subject.generate(prompts, max_new_tokens=new, logits="generated")
    for prompt, answer in zip(prompts, answers, strict=True):
        assert len(answer.tokens) == new
        if new:
            expected = plain_logits(model, prompt)[-1]
            torch.testing.assert_close(answer.logits[0], expected, atol=NOISE, rtol=0)
    owned = [page for kept in subject._store.kept.values() for page in kept.pages]
    assert len(owned) == len(set(owned))
    assert len(owned) + subject._store.pages.free == subject._store.pages.count
    subject.clear()
    assert subject._store.pages.free == subject._store.pages.count


def test_a_failure_to_keep_one_sequence_loses_no_page_of_the_others(monkeypatch):
    subject = engine(make("llama"))

    def full(*_, **__):
        raise RegistryFull("nothing may be evicted")

    with monkeypatch.context() as patch:
        patch.setattr(subject._store, "registry", SimpleNamespace(add=full))
        with pytest.raises(RegistryFull):
            subject.generate([random_tokens(70, seed) for seed in range(3)], reuse=False)
    subject.clear()
    assert subject._store.pages.free == subject._store.pages.count


def test_a_prompt_larger_than_the_pool_is_refused_and_leaves_no_trace():
    subject = engine(make("llama"), capacity_tokens=256)
    with pytest.raises(InvalidParams, match="needs 5 pages"):
        subject.generate([random_tokens(50, 0), random_tokens(300, 1)])
    assert subject._store.pages.free == 4
    assert subject.stats()["forwards"] == 0


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([Span(10, (RowPiece(1, 0, 20),), 10), Span(25, (RowPiece(1, 0, 5),), 25)], "ascend"),
        ([Span(80, (RowPiece(1, 0, 20),), 80)], "last one must be computed"),
        ([Span(10, (RowPiece(1, 90, 20),), 0)], "are not kept"),
        ([Span(10, (RowPiece(77, 0, 20),), 0)], "are not kept"),
        ([Span(10, (RowPiece(1, 0, 20),), -2048)], "turned by -2048"),
    ],
)
def test_bad_spans_are_refused(spans, message):
    subject = engine(make("llama"))
    subject.generate([random_tokens(100, 1)], max_new_tokens=0)
    with pytest.raises(InvalidParams, match=message):
        subject.generate([random_tokens(100, 2)], reuse=lambda _: spans)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
@pytest.mark.parametrize("name", ["deepseek_v3", "deepseek_v2"])
def test_the_kernel_gives_what_plain_torch_gives(name):
    """In bfloat16 on the GPU: no further from float32 than transformers' own bfloat16 is, twice."""
    wide = make(name)
    exact = plain_logits(wide, prompt := random_tokens(400, 5))
    model = type(wide)(wide.config).to("cuda", torch.bfloat16).eval()
    model.load_state_dict(wide.state_dict())
    with torch.inference_mode():
        theirs = model(torch.tensor([prompt], device="cuda")).logits[0].float().cpu()
    subject = engine(model, chunk_tokens=150)
    ours = subject.generate([prompt], max_new_tokens=0, logits="computed", reuse=False)[0]
    noise = float((theirs - exact).norm() / exact.norm())
    assert float((ours.logits.cpu() - exact).norm() / exact.norm()) <= 2 * noise + 1e-3
