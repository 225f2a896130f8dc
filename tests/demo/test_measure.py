"""Figures of a turn, their summary, and what is printed of them."""

import io
import json

import numpy as np
import pytest
from irminsul.demo.engine import Answer
from irminsul.demo.measure import compare, summarise
from irminsul.demo.progress import Progress
from irminsul.demo.prompts import Prompt
from irminsul.demo.report import as_json, print_table, summary_text


def turn(session, number, *, seconds, plain, cached, prefix=0, tokens=100, token=1):
    prompt = Prompt(session, number, np.arange(tokens, dtype=np.uint32))
    logits = np.array([0.0, 2.0, 4.0], np.float32)
    reuse = Answer(seconds, token, cached, prefix, logits + np.float32([0, 0.25, -0.5]))
    return compare(prompt, reuse, Answer(plain, 1, prefix, prefix, logits))


@pytest.fixture
def turns():
    return [
        turn("a", 0, seconds=9.0, plain=1.0, cached=0, tokens=1000),
        turn("a", 1, seconds=1.0, plain=4.0, cached=80, prefix=5),
        turn("b", 0, seconds=9.0, plain=1.0, cached=500, tokens=1000),
        turn("a", 2, seconds=2.0, plain=1.0, cached=190, prefix=10, tokens=300, token=7),
        turn("b", 1, seconds=1.0, plain=3.0, cached=90),
    ]


def test_tokens_of_a_turn_add_up():
    one = turn("a", 0, seconds=0.5, plain=2.0, cached=80, prefix=30)
    assert (one.prefix_tokens, one.reused_tokens, one.computed_tokens) == (30, 50, 20)
    assert one.speedup == 4.0
    assert one.logits_difference == 0.5
    assert one.logits_spread == pytest.approx(np.std([0, 2, 4]))
    assert one.same_token


def test_summary_leaves_out_the_first_call_of_each_session(turns):
    summary = summarise(turns)
    assert summary.turns == 3
    assert summary.reused_share == pytest.approx((75 + 180 + 90) / 500)
    assert summary.prefix_share == pytest.approx(15 / 500)
    assert summary.reused_share + summary.prefix_share + summary.computed_share == pytest.approx(1)
    assert (summary.ttft_s, summary.plain_ttft_s) == (1.0, 3.0)
    assert summary.speedup == 3.0
    assert summary.slower_turns == 1
    assert summary.same_tokens == 2


def test_only_first_calls_have_no_summary(turns):
    assert summarise(turns[:1]) is None
    assert "nothing to reuse" in summary_text(None)


def test_summary_in_words(turns):
    text = summary_text(summarise(turns))
    assert "69.0% of the prompt tokens were reused" in text
    assert "3.0 times sooner" in text
    assert "sooner on 2 of 3 calls" in text
    assert "same token on 2 of 3 calls" in text


def test_a_slowdown_is_called_one(turns):
    slow = [turns[0], turn("a", 1, seconds=2.0, plain=1.0, cached=0)]
    assert "2.0 times later" in summary_text(summarise(slow))


def test_json_holds_every_figure(turns):
    answer = json.loads(json.dumps(as_json(turns, summarise(turns), {"prompts": None})))
    assert answer["turns"][1]["speedup"] == 4.0
    assert answer["turns"][3]["session"] == "a"
    assert answer["summary"]["turns"] == 3
    assert answer["machine"]["cores"] >= 1


def test_table_names_sessions_only_where_there_are_several(turns, capsys):
    pytest.importorskip("rich")
    print_table(turns)
    several = capsys.readouterr().out
    print_table(turns[:2])
    one = capsys.readouterr().out
    assert "session" in several
    assert "session" not in one
    assert "1,000" in one
    assert "4.0x" in one


def test_progress_is_plain_lines_where_no_terminal_is():
    stream = io.StringIO()
    with Progress(2, stream) as progress:
        progress.say("starting")
        progress.step("one done")
    assert stream.getvalue() == "[  0/2] starting\n[  1/2] one done\n"
