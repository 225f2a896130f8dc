"""How the bench of attention backends compares answers: rounding is told from a real difference."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[3] / "benches" / "serving"))
import backends
from agreement import by_rounding, parted, summary
from backend_rows import CHANGED, SENSITIVE, rows_of


def answer(tokens: list[int], margin: float = 1.0, shift: float = 0.0) -> dict[str, Any]:
    steps = [[(-1.0 + shift, token), (-1.0 - margin + shift, token + 500)] for token in tokens]
    return {"tokens": tokens, "logprobs": steps, "cached": 3}


def test_equal_answers_never_part() -> None:
    assert parted(answer([1, 2, 3]), answer([1, 2, 3])) == (3, None, 0.0)


def test_the_margin_is_that_of_the_step_where_they_part() -> None:
    steps, margin, noise = parted(answer([1, 2, 9]), answer([1, 2, 3], margin=0.25))
    assert (steps, margin) == (2, 0.25)
    assert noise == pytest.approx(0.75)  # both state token 501, at -2 and at -1.25


def test_noise_counts_up_to_the_parting_only() -> None:
    ours = answer([1, 8, 8])
    theirs = answer([1, 2, 8], shift=0.01)
    assert parted(ours, theirs)[2] == pytest.approx(0.01)


def test_an_answer_that_was_cut_short_is_compared_as_far_as_it_goes() -> None:
    assert parted(answer([1]), answer([1, 2, 3])) == (1, None, 0.0)
    assert parted(answer([]), answer([1, 2, 3])) == (0, None, 0.0)


def test_rounding_explains_a_close_call_and_nothing_else() -> None:
    close = summary([answer([1, 9], 0.015, 0.01)], [answer([1, 2], 0.015)])
    far = summary([answer([1, 9], 0.9, 0.01)], [answer([1, 2], 0.9)])
    loud = summary([answer([1, 2], shift=0.5)], [answer([1, 2])])
    assert by_rounding(close, usual=0.01)
    assert not by_rounding(far, usual=0.01)
    assert not by_rounding(loud, usual=0.01)
    assert (close["equal"], close["steps_equal"], close["steps"]) == (0, 1, 2)


def found(rate: float, answers: dict[str, Any]) -> dict[str, Any]:
    memory = {"kvcache": 2.0, "token_capacity": 2**16, "graph": 0.1}
    first = {4096: {"cold": 0.2, "cached": 0.1}}
    timed = {"rates": {(1, 4096): [rate]}, "device": {(1, 4096): [1000 / rate]}, "first": first}
    return {**timed, "answers": answers, "memory": memory}


def test_rows_hold_the_best_rival_and_the_bytes_of_a_session() -> None:
    same = {"alone": [answer([1, 2])], "moved": [answer([5])]}
    results = {
        "irminsul": found(120.0, same),
        "flashinfer+irminsul": found(100.0, same | {"moved": [answer([6])]}),
        "triton": found(90.0, same),
    }
    rows = rows_of(results, [(1, 4096)], [4096], 2**16)
    decode = next(row for row in rows if row["bar_id"] == "backend.1")
    assert (decode["value"], decode["rival_value"]) == (120.0, 100.0)
    memory = next(row for row in rows if row["metric"] == "KV bytes of a session")
    assert memory["value"] == 2**31 // 2**16 * 4096
    compared = {row["case"]: row["value"] for row in rows if row["bar_id"] == "backend.answers"}
    # With triton's, not with those of a cache that moves text where ours computes it.
    assert compared == {"alone, irminsul": 0, "moved, irminsul": 0}


def test_answers_that_no_changed_token_changes_are_told() -> None:
    blind = {"alone": [answer([1, 2])] * 2, CHANGED: [answer([1, 2])] * 2}
    sees = {"alone": [answer([1, 2])] * 2, CHANGED: [answer([1, 9]), answer([4, 2])]}
    rows = rows_of({"irminsul": found(1, blind), "triton": found(1, sees)}, [], [], 1)
    values = {row["case"]: row["value"] for row in rows if row["bar_id"] == SENSITIVE}
    assert values == {"irminsul": 0, "triton": 2}


def test_recorded_calls_of_all_sessions_come_together(tmp_path: Path) -> None:
    calls = {"000_000": [1, 2, 3], "000_001": [1, 2, 3, 4], "001_000": [7, 8]}
    np.savez(tmp_path / "calls.npz", **{n: np.array(ids, np.uint32) for n, ids in calls.items()})
    asked = backends.recorded(tmp_path / "calls.npz", count=2, calls=2, most=3)
    ids = [[request["ids"] for request in requests] for requests, together in asked.values()]
    assert ids == [[[1, 2, 3], [7, 8]], [[1, 2, 3]]]
