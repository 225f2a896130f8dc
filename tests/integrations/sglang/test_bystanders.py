"""The soak's judge: what counts as another answer, and what as a wrong one."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[3] / "benches" / "serving"))

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
    assert judged.facts()["by_prompt"][0]["most"] == 0.6


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
