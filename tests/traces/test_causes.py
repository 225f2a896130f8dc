"""Pairs of calls -> the cause that a person would name."""

import numpy as np
import pytest
from irminsul.traces.causes import ADVICE, Break, BreakFinder, excerpts
from irminsul.traces.corpus import TokenizedCall
from irminsul.traces.masking import MASK, mask_secrets
from irminsul.traces.reader import Call
from irminsul.traces.template import render_chat


def system(text):
    return {"role": "system", "content": text}


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def tool(name):
    return {"type": "function", "function": {"name": name, "parameters": {}}}


LONG = "Always follow the policy. " * 30
DOCS = [f"Document {name}: a passage of some length about {name}." for name in "abcd"]
BASE = [system(LONG), user("Question"), assistant("Reply"), user("More")]


def kind_of(before, after, tools=((), ())):
    finder = BreakFinder()
    found = None
    for turn, (messages, offered) in enumerate(zip((before, after), tools, strict=True)):
        call = Call("s", turn, turn + 1, messages=messages, tools=list(offered))
        text = render_chat(messages, call.tools)
        tokens = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        found = finder.find(call, TokenizedCall("s", turn, turn + 1, tokens))
    return found


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        (
            "changing header",
            [system("time 10:31:07 id 8f3a2b\n" + LONG), user("Q")],
            [system("time 10:32:55 id 00c1d9\n" + LONG), user("Q"), assistant("A"), user("B")],
        ),
        (
            "changing header",
            [system("Mon Jan 5\nbranch main, 3 files changed\n" + LONG), user("Q")],
            [system("Tue Jan 6\nbranch fix, 17 files changed, 2 new\n" + LONG), user("Q")],
        ),
        ("system text changed", [system("You plan."), user("Q")], [system("I write."), user("Q")]),
        ("history dropped", BASE, [BASE[0], BASE[3], assistant("A"), user("B")]),
        ("history dropped", BASE, [BASE[0], user("[2 removed]"), BASE[3], assistant("A")]),
        ("history dropped", BASE, BASE[:1]),
        ("message inserted", BASE, [*BASE[:2], user("Context"), *BASE[2:]]),
        (
            "reasoning dropped",
            [user("Q"), assistant("<think>Hm, let me see.</think>\nYes."), user("B")],
            [user("Q"), assistant("Yes."), user("B"), assistant("C"), user("D")],
        ),
        (
            "documents reordered",
            [user("\n".join(DOCS) + "\nQuestion")],
            [user("\n".join([DOCS[2], DOCS[0], DOCS[3], DOCS[1]]) + "\nQuestion")],
        ),
        ("message edited", BASE, [BASE[0], user("Something else"), *BASE[2:]]),
    ],
)
def test_chat(kind, before, after):
    found = kind_of(before, after)
    assert found is not None
    assert found.kind == kind
    assert found.lost_tokens > 0
    assert (found.session, found.turn) == ("s", 1)


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [("tools reordered", "abc", "cab"), ("tools changed", "abc", "abd")],
)
def test_tools(kind, before, after):
    tools = [[tool(name) for name in names] for names in (before, after)]
    assert kind_of(BASE, BASE, tools).kind == kind


def test_a_continued_conversation_is_no_break():
    assert kind_of(BASE, [*BASE, assistant("A"), user("B")]) is None
    assert kind_of(BASE, BASE) is None


def ids(session, tokens):
    return TokenizedCall(session, 0, 1, np.array(tokens, np.uint32))


def test_prompts_and_ids():
    finder = BreakFinder()
    for session in ("text", "ids", "seam"):
        finder.find(Call(session, 0, 1, prompt="Hello there"), ids(session, range(50)))
    other = ids("text", [9, *range(50)])
    assert finder.find(Call("text", 1, 2, prompt="General"), other).kind == "content changed"
    assert finder.find(None, ids("ids", [9])).kind == "content changed"
    retokenised = ids("seam", [*range(40), 7, 7, 7])
    seam = finder.find(Call("seam", 1, 2, prompt="Hello there, you"), retokenised)
    assert (seam.kind, seam.lost_tokens) == ("tokenizer seam", 10)


def test_sessions_do_not_mix():
    finder = BreakFinder()
    assert finder.find(None, ids("a", range(50))) is None
    assert finder.find(None, ids("b", range(100, 150))) is None
    assert finder.find(None, ids("a", range(60))) is None


def test_every_cause_has_advice():
    assert all(text.endswith(".") for text in ADVICE.values())


def test_excerpts_see_secrets_whole():
    key = "sk-" + "a1B2" * 12
    before, after = f"call with {key}7777 please", f"call with {key}8888 please"
    found = Break("message edited", 5, "s", 1, before, after)
    for excerpt in excerpts(found, mask_secrets):
        assert "a1B2" not in excerpt
        assert "7777" not in excerpt
    assert "7777" in excerpts(found, str)[0]


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-abcdefgh12345678",
        "ghp_0123456789abcdefABCDEF",
        "AKIAIOSFODNN7EXAMPLE",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.sig-nature_",
        "Bearer abc.def.ghi-jkl",
        "password = 'hunter22'",
        '"api_key": "q9w8e7r6"',
        "ann.lee+x@mail.example.org",
        "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE",
    ],
)
def test_secrets_are_masked(secret):
    masked = mask_secrets(f"before {secret} after")
    assert MASK in masked
    assert masked.startswith("before ")
    for part in secret.replace('"', " ").replace("'", " ").split():
        if len(part) > 9:
            assert part not in masked


@pytest.mark.parametrize(
    "text", ["Plain words stay as they are.", "The token count is 12345.", "see src/main.rs:120"]
)
def test_ordinary_text_stays(text):
    assert mask_secrets(text) == text
