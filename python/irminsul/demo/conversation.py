"""The conversation in conversation.json -> one logged call per turn, as an agent would send them.

Must not know tokens or engines.

Every call carries the whole history, and its system prompt begins with a context block (time,
request id, branch, open files, notes) that is new on every call and has another length each time.
That is how agent frameworks write prompts, and what makes a prefix cache lose the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from irminsul.traces.reader import Call

__all__ = ["SESSION", "load_conversation"]

SESSION = "demo"


def load_conversation() -> list[Call]:
    """Return the calls of the built-in conversation; each ends where the assistant speaks next."""
    recorded = json.loads(
        files("irminsul.demo").joinpath("conversation.json").read_text(encoding="utf-8")
    )
    messages: list[dict[str, Any]] = recorded["messages"]
    ends = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    calls = []
    for turn, (end, context) in enumerate(
        zip([*ends, len(messages)], recorded["contexts"], strict=True)
    ):
        system = {"role": "system", "content": render_context(context) + recorded["system"]}
        history = [system, *messages[:end]]
        calls.append(Call(SESSION, turn, turn + 1, messages=history, tools=recorded["tools"]))
    return calls


def render_context(context: Mapping[str, str | Sequence[str]]) -> str:
    """Return the context block that stands at the head of the system prompt.

    Examples
    --------
    >>> print(render_context({"branch": "main", "open": ["a.py", "b.py"]}), end="")
    <context>
    branch: main
    open:
      - a.py
      - b.py
    </context>
    <BLANKLINE>
    """
    lines = ["<context>"]
    for key, value in context.items():
        if isinstance(value, str):
            lines.append(f"{key}: {value}")
        else:
            lines += [f"{key}:", *(f"  - {item}" for item in value)]
    return "\n".join([*lines, "</context>", "", ""])
