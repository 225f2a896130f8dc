"""The upper bound against its definition, read off directly."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from irminsul.traces.bound import SeenGrams, seen_before


def reference(prompts, gram):
    seen, result = set(), []
    for prompt in prompts:
        grams = [tuple(prompt[i : i + gram]) for i in range(len(prompt) - gram + 1)]
        marks = [False] * len(prompt)
        for start, key in enumerate(grams):
            if key in seen:
                marks[start : start + gram] = [True] * gram
        seen.update(grams)
        result.append(marks)
    return result


PROMPTS = st.lists(st.lists(st.integers(0, 2), max_size=30), max_size=6)


@settings(max_examples=200, deadline=None)
@given(PROMPTS, st.integers(1, 6))
def test_equals_its_definition(prompts, gram):
    arrays = [np.array(prompt, dtype=np.uint32) for prompt in prompts]
    assert [marks.tolist() for marks in seen_before(arrays, gram)] == reference(prompts, gram)


@settings(max_examples=200, deadline=None)
@given(PROMPTS, st.integers(1, 6))
def test_one_prompt_at_a_time_gives_the_same(prompts, gram):
    seen = SeenGrams(gram)
    for i, prompt in enumerate(prompts):
        pairs = ([a == b for a, b in zip(prompt, other, strict=False)] for other in prompts[:i])
        known = max(
            (equal.index(False) if False in equal else len(equal) for equal in pairs), default=0
        )
        marks = seen.mark(np.array(prompt, dtype=np.uint32), known).tolist()
        assert marks[known:] == reference(prompts[: i + 1], gram)[-1][known:]
        assert all(marks[:known])


def test_a_prompt_does_not_see_itself():
    tokens = np.tile(np.arange(50, dtype=np.uint32), 10)
    assert not seen_before([tokens], 16)[0].any()


def test_extreme_ids_are_told_apart():
    low, high = np.zeros(64, np.uint32), np.full(64, 2**32 - 1, np.uint32)
    first, second, third = seen_before([low, high, low])
    assert not first.any()
    assert not second.any()
    assert third.all()
