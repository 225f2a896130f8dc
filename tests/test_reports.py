"""What users of other KV caches reported, as properties of this one; each test names its report.

Reports of other kinds have their tests elsewhere: keys and rotation in test_rotation.py and
cuda/, collisions in test_registry.py, images in test_opaque.py, tenants, flushes, new weights,
aborts and leaks in integrations/sglang/, wheels in packaging/.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from irminsul import Compute, Namespace, Registry, Reuse, chunk
from irminsul.tokenizer import load_tokenizer

Ids = npt.NDArray[np.int64]

SINK = 32
CHUNK = 128  # expected size


class Texts:
    """Fresh token ids, none of which repeat by accident."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def __call__(self, length: int) -> Ids:
        return self._random.integers(1000, 120_000, length, dtype=np.int64)


def join(*parts: Sequence[int] | Ids) -> Ids:
    return np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])


def spans(donor: Ids, prompt: Ids, prefix_len: int = 0) -> list[Reuse]:
    """Return what a registry that has seen `donor` reuses of `prompt`."""
    registry = Registry(len(donor) + 1)
    registry.record(donor, 1, namespace=Namespace())
    with registry.lookup(prompt, namespace=Namespace(), prefix_len=prefix_len) as plan:
        ends = [part for part in plan.segments if isinstance(part, Compute)]
        assert plan.computed_tokens == sum(part.end - part.start for part in ends)
        assert plan.reused_tokens + plan.computed_tokens == len(prompt) - prefix_len
        return [part for part in plan.segments if isinstance(part, Reuse)]


def reused(donor: Ids, prompt: Ids, prefix_len: int = 0) -> int:
    return sum(span.length for span in spans(donor, prompt, prefix_len))


@pytest.mark.parametrize("shift", [1, -1, 17, -17, 4096, -4096])
def test_a_document_is_reused_at_any_shifted_offset(shift: int) -> None:
    """https://github.com/sgl-project/sglang/issues/30928"""
    text = Texts(1)
    document = text(3000)
    donor = join(text(5000), document, text(50))
    moved = join(text(5000 + shift), document, text(70))
    found = spans(donor, moved)
    assert {span.delta for span in found} == {shift}
    assert sum(span.length for span in found) >= 0.9 * len(document)


def test_a_miss_between_two_hits_costs_only_itself() -> None:
    """https://github.com/LMCache/LMCache/issues/835"""
    text = Texts(2)
    first, second = text(900), text(1100)
    misses = [text(300), text(200)]
    prompt = join(first, misses[0], second, misses[1])
    donor = join(text(400), first, text(70), second)
    computed = len(prompt) - reused(donor, prompt)
    # Beside the misses: positions of the sink, and at each seam less than a chunk.
    assert computed <= 500 + SINK + 3 * CHUNK


def test_a_changed_question_before_a_document_leaves_it_reusable() -> None:
    """https://github.com/LMCache/LMCache/issues/3238"""
    text = Texts(3)
    system, document, separator = text(500), text(2400), text(5)
    donor = join(system, text(40), document, separator)
    prompt = join(system, text(52), document, separator, text(1))
    assert reused(donor, prompt, prefix_len=500) >= 0.9 * len(document)


def test_text_is_found_after_any_context_without_separators() -> None:
    """https://github.com/LMCache/LMCache/issues/1136 and .../issues/2026"""
    pytest.importorskip("tokenizers")
    tokenizer = load_tokenizer()
    body = " ".join(
        f"Clause {n} says that party {n * 7 % 23} pays {n * n} on day {n % 31}." for n in range(120)
    )
    whole = tokenizer.encode(body).astype(np.int64)
    donor = join(Texts(4)(600), whole)
    registry = Registry(len(donor) + 1)
    registry.record(donor, 1, namespace=Namespace())
    seams = ["", " ", "\n", "\n\n", "(", '"', "、", "。", "…", "x", "9", "\t", "=", "éa", "ですが"]
    contexts = [
        f"{'context ' * (n % 9)}number {n}{seam}"
        for n, seam in zip(range(200), itertools.cycle(seams), strict=False)
    ]
    for context in contexts:
        ids = join(Texts(5)(64), tokenizer.encode(context + body).astype(np.int64), [7])
        with registry.lookup(ids, namespace=Namespace()) as plan:
            assert plan.reused_tokens >= len(whole) - CHUNK, context


@settings(max_examples=20, deadline=None)
@given(order=st.permutations(range(6)), seed=st.integers(0, 2**32 - 1))
def test_a_seam_between_documents_costs_less_than_a_chunk(order: list[int], seed: int) -> None:
    """https://github.com/LMCache/LMCache/issues/4667"""
    text = Texts(seed)
    documents = [text(150 + 170 * index) for index in range(6)]
    donor = join(text(64), *documents)
    prompt = join(text(64), *(documents[index] for index in order), text(1))
    lost = sum(map(len, documents)) - reused(donor, prompt)
    assert lost <= len(documents) * CHUNK


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
def test_a_nonce_near_the_start_does_not_lose_the_prompt(length: int) -> None:
    """https://github.com/anthropics/claude-code/issues/68900: the nonce's token count varies."""
    text = Texts(6)
    head, body = text(40), text(60_000)
    donor = join(head, text(3), body)
    prompt = join(head, text(length), body, text(30))
    assert reused(donor, prompt, prefix_len=40) >= 0.95 * len(body)


@pytest.mark.parametrize("kept", [0, 2])
@pytest.mark.parametrize("removed", [1, 2, 48, 500, 5000])
def test_text_removed_from_the_history_costs_what_follows_nothing(removed: int, kept: int) -> None:
    """https://github.com/anomalyco/opencode/issues/19081: a block of reasoning is left out."""
    text = Texts(7)
    before, block, after = text(3000), text(removed), text(8000)
    donor = join(before, block, after)
    prompt = join(before, text(kept), after, text(20))
    found = spans(donor, prompt, prefix_len=len(before))
    assert sum(span.length for span in found) >= 0.95 * len(after)
    assert {span.delta for span in found} == {kept - removed}


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), data=st.data())
def test_chunks_in_another_order_are_the_same_chunks(seed: int, data: st.DataObject) -> None:
    """https://github.com/google/cdc-file-transfer/issues/76: a cut follows what causes it."""
    tokens = Texts(seed)(4000)
    cut = chunk(tokens)
    parts = [tokens[part.start : part.end] for part in cut]
    # The last chunk ends where the text does, not where content says.
    whole, rest = parts[:-1], parts[-1]
    order = data.draw(st.permutations(range(len(whole))))
    again = chunk(join(*(whole[index] for index in order), rest))
    expected = [int(cut.fingerprints[index]) for index in order] + [int(cut.fingerprints[-1])]
    assert again.fingerprints.tolist() == expected


@pytest.mark.parametrize("tree", [True, False])
def test_a_head_that_all_texts_share_does_not_slow_the_lookup(tree: bool) -> None:
    """https://github.com/sgl-project/sglang/issues/28420: a bucket with an entry for each text."""
    best = {}
    for count in (50, 5000):
        text, registry = Texts(9), Registry(1 << 24)
        head, tails = text(2000), [text(300) for _ in range(count)]
        registry.add(0, None, head, namespace=Namespace())
        for node, tail in enumerate(tails, 1):
            if tree:
                registry.add(node, 0, tail, namespace=Namespace(), base_position=len(head))
            else:  # each with a copy of its own
                registry.add(node, None, join(head, tail), namespace=Namespace())
        prompt, samples = join(text(100), head, *tails[::-1][:6], text(50)), []
        for _ in range(50):
            began = time.perf_counter()
            with registry.lookup(prompt, namespace=Namespace()) as plan:
                assert plan.reused_tokens >= 0.9 * len(prompt)
            samples.append(time.perf_counter() - began)
        best[count] = min(samples)
    assert best[5000] < 5 * best[50]  # measured: the same time


def test_counts_never_exceed_the_prompt() -> None:
    """https://github.com/sgl-project/sglang/pull/32761"""
    text = Texts(8)
    prompt = text(2000)
    assert reused(prompt, prompt) <= len(prompt) - 1
    assert reused(prompt, prompt[:33]) == 0
