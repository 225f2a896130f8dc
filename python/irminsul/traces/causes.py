"""Two calls of one session -> why the later one does not simply continue the earlier one.

Must not know caches. Looks at messages and tools where the log has them, else at text or ids.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from irminsul._ids import common_prefix
from irminsul.traces.corpus import TokenizedCall
from irminsul.traces.reader import Call
from irminsul.traces.template import message_role, message_text

__all__ = ["ADVICE", "Break", "BreakFinder", "excerpts"]

ADVICE = {
    "changing header": "Move times, request ids and status lines to the end of the prompt.",
    "system text changed": "Keep one system text per deployment; put variants after the history.",
    "tools reordered": "Sort tool schemas by name before rendering them.",
    "tools changed": "Offer one fixed tool list, and restrict the choice by other means.",
    "history dropped": "Compact rarely and in large steps; keep the head of the history fixed.",
    "reasoning dropped": "Leave reasoning out of the history from the first turn on, or never.",
    "documents reordered": "Keep retrieved documents in a fixed order, new ones at the end.",
    "message inserted": "Append new context at the end instead of in the middle.",
    "message edited": "Do not rewrite messages that were sent before.",
    "tokenizer seam": "Record token ids, or end pieces at special tokens, so ids stay the same.",
    "content changed": "Compare the two excerpts: what stands first in a prompt should stay.",
}

# Two tokens: the mark that opens the reply may be followed by another one.
_SLACK_TOKENS = 2
_MAX_OPEN_SESSIONS = 4096
_EXCERPT_CHARS = 60
_WINDOW_CHARS = 256

_VOLATILE = re.compile(
    r"\b(?:mon|tue|wed|thu|fri|sat|sun|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\b"
    r"|\b[0-9a-f]{4,}\b|\d+|[-:.TZ+]",
    re.IGNORECASE,
)
_HAS_DIGIT = re.compile(r"\d")
_REASONING = re.compile(r"<think>.*?</think>\s*|^.*?</think>\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Break:
    """One broken prefix.

    Attributes
    ----------
    kind : str
        A key of `ADVICE`.
    lost_tokens : int
        Tokens of the earlier prompt after the first difference.
    session, turn : str, int
        The later call.
    before, after : str
        Text round the first difference, as it was and as it is; unmasked, see `excerpts`.
    """

    kind: str
    lost_tokens: int
    session: str
    turn: int
    before: str = ""
    after: str = ""


class BreakFinder:
    """Compares every call with the one before it in its session."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, tuple[Call | None, npt.NDArray[np.uint32]]] = OrderedDict()

    def find(self, call: Call | None, tokenized: TokenizedCall) -> Break | None:
        """Return why the prefix broke, None when the call continues the one before it."""
        previous = self._last.pop(tokenized.session, None)
        self._last[tokenized.session] = (call, tokenized.tokens)
        if len(self._last) > _MAX_OPEN_SESSIONS:
            self._last.popitem(last=False)
        if previous is None:
            return None
        earlier, tokens = previous
        lost = len(tokens) - common_prefix(tokens, tokenized.tokens)
        if lost <= _SLACK_TOKENS:
            return None
        kind, before, after = _explain(earlier, call)
        return Break(kind, lost, tokenized.session, tokenized.turn, before, after)


def _same(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Return how many items two sequences begin with alike."""
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


def _explain(earlier: Call | None, later: Call | None) -> tuple[str, str, str]:
    if earlier is None or later is None:
        return "content changed", "", ""
    if earlier.messages is not None and later.messages is not None:
        return _explain_chat(earlier, later)
    if earlier.prompt is not None and later.prompt is not None:
        if later.prompt.startswith(earlier.prompt):
            return "tokenizer seam", "", ""
        return _explain_text(earlier.prompt, later.prompt, "content changed")
    return "content changed", "", ""


def _explain_chat(earlier: Call, later: Call) -> tuple[str, str, str]:
    a, b = list(earlier.messages or ()), list(later.messages or ())
    old, new = _pop_system(a), _pop_system(b)
    if old != new:
        return _explain_text(old, new, "system text changed")
    if list(earlier.tools) != list(later.tools):
        return _explain_tools(earlier.tools, later.tools)
    at = _same(a, b)
    if at == len(a):
        return "tokenizer seam", "", ""
    return _explain_messages(a[at:], b[at:])


def _pop_system(messages: list[Mapping[str, Any]]) -> str:
    if messages and message_role(messages[0]) == "system":
        return message_text(messages.pop(0))
    return ""


def _is_header(a: str, b: str) -> bool:
    """Tell a header whose values change from a text that was rewritten."""
    start = _same(a, b)
    end = _same(a[start:][::-1], b[start:][::-1])
    middle_a, middle_b = a[start : len(a) - end], b[start : len(b) - end]
    if _VOLATILE.sub("", middle_a) == _VOLATILE.sub("", middle_b):
        return True
    # Headers hold numbers, and the text after them stays; that text may be shorter than they are.
    words = (_word_at(a, start), _word_at(b, start))
    return all(map(_HAS_DIGIT.search, words)) or end > max(len(middle_a), len(middle_b))


def _word_at(text: str, at: int) -> str:
    before = text[:at].split()[-1:] if at and not text[at - 1].isspace() else []
    return "".join(before + text[at : at + 100].split()[:1])


def _explain_tools(
    a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]
) -> tuple[str, str, str]:
    names = [[_tool_name(tool) for tool in tools] for tools in (a, b)]
    at = _same(a, b)
    before, after = (", ".join(part[at : at + 4]) for part in names)
    same = len(a) == len(b) and all(tool in b for tool in a)
    return ("tools reordered" if same else "tools changed"), before, after


def _tool_name(tool: Mapping[str, Any]) -> str:
    function = tool.get("function")
    return str((function if isinstance(function, Mapping) else tool).get("name", "?"))


def _explain_messages(
    a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]
) -> tuple[str, str, str]:
    """Explain histories that differ from their first message on."""
    if not b:
        return "history dropped", message_text(a[0])[:_WINDOW_CHARS], ""
    old, new = message_text(a[0]), message_text(b[0])
    # The second one counts too, since compaction often puts a notice in place of what it dropped.
    if b[0] in a[1:] or (len(b) > 1 and b[1] in a[2:]):
        return "history dropped", old[:_WINDOW_CHARS], new[:_WINDOW_CHARS]
    if a[0] in b[1:]:
        return "message inserted", old[:_WINDOW_CHARS], new[:_WINDOW_CHARS]
    if _REASONING.sub("", old) == _REASONING.sub("", new):
        return ("reasoning dropped", *_windows(old, new))
    return _explain_text(old, new, "message edited")


def _explain_text(old: str, new: str, otherwise: str) -> tuple[str, str, str]:
    if _is_header(old, new):
        kind = "changing header"
    else:
        kind = "documents reordered" if _is_reordered(old, new) else otherwise
    return (kind, *_windows(old, new))


def _is_reordered(old: str, new: str) -> bool:
    parts = [[p for p in text.split("\n") if len(p) > 20] for text in (old, new)]
    shared = set(parts[0]) & set(parts[1])
    orders = [[p for p in part if p in shared] for part in parts]
    return len(shared) > 1 and 2 * len(shared) >= len(set(parts[0])) and orders[0] != orders[1]


def _windows(a: str, b: str) -> tuple[str, str]:
    start = max(_same(a, b) - _WINDOW_CHARS, 0)
    return a[start : start + 2 * _WINDOW_CHARS], b[start : start + 2 * _WINDOW_CHARS]


def excerpts(found: Break, clean: Callable[[str], str]) -> tuple[str, str]:
    """Return what stood and what stands at the first difference, each in at most 60 characters.

    Parameters
    ----------
    found : Break
    clean : callable
        Applied to a wider part of the text before it is cut, so that it sees secrets whole.
    """
    a, b = clean(found.before), clean(found.after)
    start = max(_same(a, b) - 10, 0)
    return _shorten(a[start:]), _shorten(b[start:])


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _EXCERPT_CHARS else text[: _EXCERPT_CHARS - 1] + "…"
