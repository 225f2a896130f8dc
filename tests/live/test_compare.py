"""Differences of answers, and prompts that share nothing by accident."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from irminsul.live.client import Reply
from irminsul.live.compare import differences, first_token_kl
from irminsul.live.probes import Author


def reply(tokens: tuple[int, ...], logprobs: tuple[float, ...], first: dict[int, float]) -> Reply:
    return Reply(10, 0, len(tokens), tokens, logprobs, first, 0.1, 0.2)


def logs(*probabilities: float) -> dict[int, float]:
    return {token: math.log(p) for token, p in enumerate(probabilities)}


def test_flips_their_place_and_gaps_before_them() -> None:
    cold = [reply((1, 2, 3), (-0.1, -0.2, -0.3), logs(0.9, 0.1)) for _ in range(3)]
    others = [
        reply((1, 2, 3), (-0.1, -0.25, -0.3), logs(0.9, 0.1)),
        reply((1, 9, 3), (-0.15, -5.0, -9.0), logs(0.9, 0.1)),
        reply((1, 2), (-0.1, -0.2), logs(0.5, 0.5)),
    ]
    found = differences(cold, others)
    assert (found.answers, found.flips, found.first_flip) == (3, 2, 1)
    assert found.logprob_most == pytest.approx(0.05)
    assert found.kl_median == pytest.approx(0.0, abs=1e-9)
    assert found.kl_most == pytest.approx(0.9 * math.log(1.8) + 0.1 * math.log(0.2), rel=1e-6)


def test_divergence_of_known_distributions() -> None:
    assert first_token_kl(logs(0.5, 0.25), logs(0.5, 0.25)) == pytest.approx(0.0)
    # The rest, 0.25 and 0.5, is one more outcome.
    expected = 0.5 * math.log(0.5 / 0.25) + 0.25 * math.log(0.25 / 0.25) + 0.25 * math.log(0.5)
    assert first_token_kl(logs(0.5, 0.25), logs(0.25, 0.25)) == pytest.approx(expected)
    assert first_token_kl({}, logs(1.0)) == 0.0


def test_disjoint_distributions_are_far_apart() -> None:
    assert first_token_kl({1: math.log(0.9)}, {2: math.log(0.9), 3: math.log(1e-4)}) > 5


weights = st.lists(st.floats(0.01, 1.0), min_size=2, max_size=20)


@given(weights, weights)
def test_divergence_is_never_negative(mine: list[float], theirs: list[float]) -> None:
    left = logs(*(weight / sum(mine) * 0.99 for weight in mine))
    right = logs(*(weight / sum(theirs) * 0.99 for weight in theirs))
    assert first_token_kl(left, right) >= 0.0
    assert first_token_kl(left, left) == pytest.approx(0.0, abs=1e-9)


def test_the_document_is_in_both_prompts_at_other_places() -> None:
    probe = Author(1, vocabulary=5000).probe(300)
    donor, moved = list(probe.donor), list(probe.moved)
    document = donor[60:360]
    at = next(i for i in range(len(moved)) if moved[i : i + 300] == document)
    assert at != 60
    assert moved[:at] + moved[at + 300 :] == list(probe.frame)


@pytest.mark.parametrize("vocabulary", [None, 512])
def test_passages_share_no_run(vocabulary: int | None) -> None:
    author = Author(3, vocabulary)
    seen: set[tuple[object, ...]] = set()
    for probe in (author.probe(400) for _ in range(5)):
        frame = probe.frame.split() if isinstance(probe.frame, str) else list(probe.frame)
        donor = probe.donor.split() if isinstance(probe.donor, str) else list(probe.donor)
        for words in (frame, donor):
            runs = {tuple(words[i : i + 16]) for i in range(len(words) - 15)}
            assert not runs & seen
            seen |= runs


def test_a_seed_is_a_text() -> None:
    texts = [Author(seed).probe(50).moved for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert all(isinstance(text, str) and len(text) > 300 for text in texts)
    starts = [text.split("\n\n")[0] for text in map(str, texts)]
    assert all(a != b for a, b in itertools.pairwise(starts[1:]))
