"""Jobs run one by one, urgent ones first, never more than may wait, and a failure ends nothing."""

from __future__ import annotations

import logging
import threading

import pytest
from irminsul.tiers.aside import Aside
from tiers.mooncake_store import until


def test_urgent_jobs_go_first_and_what_is_too_much_is_refused() -> None:
    aside, gate, began, ran = Aside(most=2), threading.Event(), threading.Event(), list[str]()

    def first() -> None:
        began.set()
        gate.wait(30.0)

    assert aside.run(first)
    assert began.wait(30.0)
    assert aside.run(lambda: ran.append("a"))
    assert aside.run(lambda: ran.append("b"))
    assert not aside.run(lambda: ran.append("refused"))
    assert aside.run(lambda: ran.append("urgent"), urgent=True)
    gate.set()
    assert until(lambda: len(ran) == 3)
    assert ran == ["urgent", "a", "b"]
    aside.close()
    assert not aside.run(lambda: ran.append("closed"))


def test_a_job_that_fails_is_logged_and_the_next_one_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    aside, ran = Aside(), list[int]()
    with caplog.at_level(logging.ERROR):
        assert aside.run(lambda: ran.append(1 // 0))
        assert aside.run(lambda: ran.append(2))
        assert until(lambda: ran == [2])
    assert "job" in caplog.text
    aside.close()
