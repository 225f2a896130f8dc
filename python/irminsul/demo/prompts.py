"""Logged calls -> the token ids of each turn's prompt.

Must not know engines; the built-in conversation and a user's log take the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from irminsul.errors import InvalidParams, InvalidTrace
from irminsul.tokenizer import Encoder
from irminsul.traces.reader import Call
from irminsul.traces.template import render_pieces

__all__ = ["Prompt", "encode_calls", "first_sessions"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request: its session, its number in it, and its token ids (uint32 [n])."""

    session: str
    turn: int
    ids: npt.NDArray[np.uint32]


def first_sessions(calls: Iterable[Call], sessions: int, turns: int | None) -> list[Call]:
    """Return the calls of the first `sessions` sessions, at most `turns` of each, in file order.

    Raises
    ------
    InvalidTrace
        There is no call at all.
    """
    chosen: dict[str, list[Call]] = {}
    for call in calls:
        if call.session in chosen or len(chosen) < sessions:
            chosen.setdefault(call.session, []).append(call)
    if not chosen:
        raise InvalidTrace("the log holds no request that can be read")
    return [call for session in chosen.values() for call in islice(session, turns)]


def encode_calls(
    calls: Iterable[Call], encoder: Encoder, vocab_size: int, longest: int
) -> Iterator[Prompt]:
    """Yield every call's prompt.

    Parameters
    ----------
    calls
        Messages and tools are rendered and encoded; text is encoded; ids are taken as they are.
    encoder
        The tokenizer.
    vocab_size
        Number of ids that the model knows.
    longest
        Longest prompt that the engine takes, in tokens.

    Raises
    ------
    InvalidTrace
        A prompt is empty or has an id that the model does not know.
    InvalidParams
        A prompt is too long.
    """
    for call in calls:
        ids = _ids(call, encoder)
        name = f"call {call.turn} of session {call.session!r} (line {call.line})"
        if not len(ids):
            raise InvalidTrace(f"{name} has an empty prompt")
        if int(ids.max()) >= vocab_size:
            raise InvalidTrace(
                f"{name} has token id {int(ids.max())}, the demo's model knows ids below "
                f"{vocab_size:,}"
            )
        if len(ids) > longest:
            raise InvalidParams(
                f"{name} has {len(ids):,} tokens, the demo takes up to {longest:,}; "
                "choose fewer calls with --turns or a larger --pool-tokens"
            )
        yield Prompt(call.session, call.turn, ids)


def _ids(call: Call, encoder: Encoder) -> npt.NDArray[np.uint32]:
    if call.token_ids is not None:
        return np.array(call.token_ids, dtype=np.uint32)
    if call.messages is not None:
        return encoder.encode_pieces(render_pieces(call.messages, call.tools))
    return encoder.encode(call.prompt or "")
