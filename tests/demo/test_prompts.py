"""From logged calls and the built-in conversation to the ids that the engines get."""

import numpy as np
import pytest

pytest.importorskip("tokenizers")

import itertools

from irminsul.demo.conversation import load_conversation, render_context
from irminsul.demo.prompts import encode_calls, first_sessions
from irminsul.errors import InvalidParams, InvalidTrace, MissingExtra
from irminsul.tokenizer import load_tokenizer
from irminsul.traces.reader import Call
from irminsul.traces.template import render_chat

VOCABULARY = 129_280


@pytest.fixture(scope="module")
def encoder():
    try:
        return load_tokenizer()
    except MissingExtra as error:
        pytest.skip(str(error))


def call(session, turn, **prompt):
    return Call(session, turn, turn + 1, **(prompt or {"token_ids": [turn + 1]}))


def test_the_first_sessions_are_kept_whole_when_they_alternate():
    calls = [call(s, t) for t in range(3) for s in ("a", "b", "c")]
    chosen = first_sessions(iter(calls), sessions=2, turns=None)
    assert [(c.session, c.turn) for c in chosen] == [(s, t) for s in "ab" for t in range(3)]


def test_turns_limits_each_session():
    calls = [call(s, t) for s in ("a", "b") for t in range(3)]
    chosen = first_sessions(calls, sessions=5, turns=2)
    assert [(c.session, c.turn) for c in chosen] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


def test_an_empty_log_is_refused():
    with pytest.raises(InvalidTrace, match="no request that can be read"):
        first_sessions([], 1, None)


def test_messages_text_and_ids_become_ids(encoder):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    calls = [
        call("a", 0, messages=messages),
        call("a", 1, prompt=render_chat(messages)),
        call("a", 2, token_ids=[5, 6, 7]),
    ]
    prompts = list(encode_calls(calls, encoder, VOCABULARY, 1000))
    np.testing.assert_array_equal(prompts[0].ids, prompts[1].ids)
    assert prompts[2].ids.tolist() == [5, 6, 7]
    assert all(prompt.ids.dtype == np.uint32 for prompt in prompts)


def test_a_prompt_the_engine_cannot_take_is_named(encoder):
    with pytest.raises(InvalidTrace, match=r"call 3 of session 'a' \(line 4\) has token id 200000"):
        list(encode_calls([call("a", 3, token_ids=[200_000])], encoder, VOCABULARY, 100))
    with pytest.raises(InvalidParams, match="has 101 tokens, the demo takes up to 100"):
        list(encode_calls([call("a", 0, token_ids=[1] * 101)], encoder, VOCABULARY, 100))
    with pytest.raises(InvalidTrace, match="empty prompt"):
        list(encode_calls([call("a", 0, token_ids=[])], encoder, VOCABULARY, 100))


def test_pieces_are_encoded_like_the_whole(encoder):
    for one in load_conversation()[::4]:
        whole = encoder.encode(render_chat(one.messages, one.tools))
        (prompt,) = encode_calls([one], encoder, VOCABULARY, 100_000)
        np.testing.assert_array_equal(prompt.ids, whole)


def test_encoded_pieces_cannot_be_changed_through_a_result(encoder):
    first = encoder.encode_pieces(["hello"])
    first[:] = 0
    assert encoder.encode_pieces(["hello"]).any()


def test_the_conversation_is_what_an_agent_sends(encoder):
    calls = load_conversation()
    assert len(calls) >= 8
    assert len(calls[0].tools) >= 4
    contexts = [c.messages[0]["content"].partition("</context>")[0] for c in calls]
    assert len(set(contexts)) == len(contexts)
    assert len({len(encoder.encode(context)) for context in contexts}) >= 8
    for earlier, later in itertools.pairwise(calls):
        # Histories grow: every call repeats the one before, but for the context block.
        assert later.messages[1 : len(earlier.messages)] == earlier.messages[1:]
        assert len(later.messages) > len(earlier.messages)
    prompts = list(encode_calls(calls, encoder, VOCABULARY, 100_000))
    assert 1000 < len(prompts[0].ids) < len(prompts[-1].ids) < 10_000


def test_every_tool_result_follows_its_call():
    for one in load_conversation():
        open_calls = set()
        for message in one.messages:
            open_calls |= {c["id"] for c in message.get("tool_calls", ())}
            if message["role"] == "tool":
                open_calls.remove(message["tool_call_id"])
        assert not open_calls


def test_context_lists_are_indented():
    assert render_context({"open": ["a", "b"]}) == "<context>\nopen:\n  - a\n  - b\n</context>\n\n"
