"""Chat requests -> the rendering, and pieces that a tokenizer treats alike joined and apart."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from irminsul.traces.template import render_chat, render_pieces

CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"function": {"name": "find", "arguments": '{"q": 1}'}}],
}


def test_system_text_comes_before_tools_and_turns():
    text = render_chat(
        [{"role": "system", "content": "SYS"}, {"role": "user", "content": "Q"}],
        [{"name": "one"}, {"name": "two"}],
    )
    assert text.index("SYS") < text.index('{"name": "one"}') < text.index('{"name": "two"}')
    assert text.index('"two"') < text.index("Q")


@pytest.mark.parametrize(
    ("message", "rendered"),
    [
        ({"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}, "ab"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "[image_url]"),
        ({"role": "user", "content": None}, ""),
        ({"role": "tool", "content": {"ok": True}}, '{"ok": true}'),
        (CALL, 'find<｜tool▁sep｜>{"q": 1}'),  # noqa: RUF001
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
            "f<｜tool▁sep｜>{}",  # noqa: RUF001
        ),
    ],
)
def test_message_forms(message, rendered):
    assert rendered in render_chat([message])


def test_a_turn_extends_the_prompt_before_it():
    turns = [{"role": "user", "content": "a"}, CALL, {"role": "tool", "content": "b"}]
    pieces = [render_pieces(turns[:n]) for n in range(1, 4)]
    for earlier, later in itertools.pairwise(pieces):
        assert later[: len(earlier) - 1] == earlier[:-1]


MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["system", "user", "assistant", "tool", "developer"]),
            "content": st.none() | st.text("ab1 \n{}\"'<>|é中", max_size=30),
        }
    ),
    max_size=5,
)


@settings(max_examples=60, deadline=None)
@given(MESSAGES, st.lists(st.just({"name": "t", "description": "d\n"}), max_size=2))
def test_pieces_tokenise_as_the_whole(encoder, messages, tools):
    pieces = render_pieces(messages, tools)
    apart = encoder.encode_pieces(pieces).tolist()
    assert apart == encoder.encode(render_chat(messages, tools)).tolist()
