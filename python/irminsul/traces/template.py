"""Chat messages and tool schemas -> prompt text, as pieces that tokenise independently.

Knows nothing of files, token ids or caches. This is one fixed, plain rendering made for comparing
caches: system text first, then the tools, then the turns. It uses the vocabulary's own role marks,
but it is not the template any model was trained with.
"""
# The role marks hold full-width bars.
# ruff: noqa: RUF001, RUF002

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["message_role", "message_text", "render_chat", "render_pieces"]

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
SYSTEM_BEGIN, SYSTEM_END = "<｜begin▁sys｜>", "<｜end▁sys｜>"
CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
OUTPUT_BEGIN, OUTPUT_END = "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"


def render_pieces(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
) -> list[str]:
    """Render a chat request as pieces whose concatenation is the prompt.

    Parameters
    ----------
    messages : sequence of mappings
        OpenAI chat messages: ``role``, ``content`` (a string, null, or a list of content parts),
        ``tool_calls``.
    tools : sequence of mappings
        Tool schemas, written after the system text in the order given.

    Returns
    -------
    list of str
        Every piece begins with a role mark, which a DeepSeek tokenizer never merges with its
        neighbours, so encoding piece by piece equals encoding the whole. Agent prompts repeat
        their pieces from turn to turn; a cache of encoded pieces makes tokenising a trace cheap.
    """
    rest = list(messages)
    head = BOS
    if rest and message_role(rest[0]) == "system":
        head += _text(rest.pop(0).get("content"))
    if tools:
        schemas = (json.dumps(tool, ensure_ascii=False) for tool in tools)
        head += "\n\n## Tools\n\n" + "\n".join(schemas)
    return [head, *map(_render_message, rest), ASSISTANT]


def render_chat(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
) -> str:
    """Render a chat request as prompt text; see `render_pieces`.

    Examples
    --------
    >>> render_chat([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
    '<｜begin▁of▁sentence｜>Be brief.<｜User｜>Hi<｜Assistant｜>'
    """
    return "".join(render_pieces(messages, tools))


def message_role(message: Mapping[str, Any]) -> str:
    """Return the role of a chat message; ``developer`` is another name of ``system``."""
    role = str(message.get("role", "user"))
    return "system" if role == "developer" else role


def message_text(message: Mapping[str, Any]) -> str:
    """Return the text of a chat message's content, "" when it has none."""
    return _text(message.get("content"))


def _render_message(message: Mapping[str, Any]) -> str:
    role, text = message_role(message), _text(message.get("content"))
    if role == "assistant":
        return ASSISTANT + text + _render_tool_calls(message.get("tool_calls") or []) + EOS
    if role in ("tool", "function"):
        return OUTPUT_BEGIN + text + OUTPUT_END
    if role == "system":
        return SYSTEM_BEGIN + text + SYSTEM_END
    return USER + text


def _render_tool_calls(calls: Sequence[Mapping[str, Any]]) -> str:
    if not calls:
        return ""
    functions = (call.get("function") or {} for call in calls)
    rendered = (
        CALL_BEGIN + str(f.get("name", "")) + SEPARATOR + _json(f.get("arguments")) + CALL_END
        for f in functions
    )
    return CALLS_BEGIN + "".join(rendered) + CALLS_END


def _json(value: Any) -> str:
    """Arguments are JSON text in the wire format; some logs hold them decoded."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "".join(map(_part_text, content))
    return _json(content)


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping):
        text = part.get("text")
        return text if isinstance(text, str) else f"[{part.get('type', 'part')}]"
    return _json(part)
