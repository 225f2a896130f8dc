"""The soak's judge: another answer, a wrong one, a plan that overtook its copy."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[3] / "benches" / "serving"))

import plans
from bystanders import Answer, Bystanders

LIKELY = {7: -0.5, 3: -1.0, 9: -4.0}


def test_answers_are_compared_as_far_as_their_tokens_agree() -> None:
    one = Answer([7, 7, 7], [LIKELY, LIKELY, LIKELY])
    shifted = {token: value - 0.25 for token, value in LIKELY.items()}
    assert one.apart(one) == (0.0, False)
    assert one.apart(Answer([7, 7, 7], [LIKELY, shifted, LIKELY])) == (0.25, False)
    # Behind the first other token they answer something else, which says nothing.
    far = {token: value - 5.0 for token, value in LIKELY.items()}
    assert one.apart(Answer([7, 3, 1], [LIKELY, shifted, far])) == (0.25, True)


def test_a_token_that_one_answer_leaves_out_is_no_likelier_than_its_last() -> None:
    one, other = Answer([7], [LIKELY]), Answer([7], [{7: -0.5, 3: -1.0, 5: -4.5}])
    assert one.apart(other) == (0.5, False)
    assert other.apart(one) == (0.5, False)


def test_an_answer_is_wrong_where_it_is_off_like_one_over_a_wrong_row() -> None:
    """The engine here adds an error to every answer, and a large one to wrong ids."""
    error = [0.0]
    known = {tuple(range(10, 40)), tuple(range(50, 90))}

    async def ask(ids: Any) -> tuple[dict[str, Any], list[int]]:
        off = error[0] if tuple(ids.tolist()) in known else 0.5
        best = [[(-0.5 - off, 7, None), (-1.0, 3, None)]]
        return {"output_top_logprobs": best}, [7]

    async def soak() -> Bystanders:
        judged = Bystanders(ask, 512)
        for ids in known:
            await judged.add(np.array(ids))
        await judged.spoil(np.random.default_rng(0))
        for error[0] in (0.0, 0.03, 0.4, 0.6):
            await judged.check(0)
        return judged

    judged = asyncio.run(soak())
    assert judged.visible() == 0.5
    assert judged.wrong() == 1
    assert judged.facts()["asked"] == 4
    assert judged.facts()["apart"]["most"] == 0.6
    assert judged.facts()["by_prompt"][0] == {
        "asked": 4, "flipped": 0, "p50": 0.215, "most": 0.6
    }  # fmt: skip


def test_one_answer_that_is_off_is_not_what_others_are_compared_with() -> None:
    off = iter([0.5, 0.0, 0.0, 0.0])

    async def ask(ids: Any) -> tuple[dict[str, Any], list[int]]:
        return {"output_top_logprobs": [[(-0.5 - next(off), 7, None), (-1.0, 3, None)]]}, [7]

    async def soak() -> Bystanders:
        judged = Bystanders(ask, 512)
        await judged.add(np.arange(10, 40))
        await judged.check(0)
        return judged

    assert asyncio.run(soak()).apart == [0.0]


@pytest.mark.parametrize("waits", [False, True])
def test_plans_that_overtake_a_copy_are_counted_and_wait_if_asked(
    waits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    class Event:
        over = False

        def query(self) -> bool:
            return Event.over

        def synchronize(self) -> None:
            done.append("waited")

        def record(self) -> None:
            done.append("copied")

    monkeypatch.setattr("torch.cuda.Event", Event)
    monkeypatch.setattr(plans, "_EVERY", 1)
    place = tmp_path / "plans"
    monkeypatch.setenv(plans.VARIABLE, str(place))
    if waits:
        place.with_suffix(".wait").touch()
    around, wrapper = plans.Plans(place), type("Wrapper", (), {})()
    slots = np.array([5, 6, 7])
    for Event.over in (False, False, True):
        around(lambda *given: done.append("planned"), wrapper, None, None, slots)
    assert plans.counted() == {"plans": 3, "late": 1, "waited": pytest.approx(0, abs=0.1)}
    one = ["planned", "copied"]
    assert done == [*one, *["waited"] * waits, *one, *one]
    place.with_suffix(".row").write_text("1")
    around(lambda *given: None, wrapper, None, None, slots)
    assert slots.tolist() == [5, 7, 7]
