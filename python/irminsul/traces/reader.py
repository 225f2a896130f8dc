"""Logged requests (JSON lines; plain, gzip, zstd or stdin) -> one `Call` per LLM call.

Knows nothing of tokens, caches or chat templates.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from irminsul.errors import InvalidTrace, MissingExtra

__all__ = ["Call", "Malformed", "TraceReader", "read_calls"]

Message = Mapping[str, Any]

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_GZIP_MAGIC = b"\x1f\x8b"
# Small, since a crafted block expands thirty-thousandfold.
_ZSTD_BLOCK_BYTES = 1 << 12


@dataclass(frozen=True, slots=True)
class Call:
    """One LLM request as it was logged; exactly one of the three prompt forms is set.

    Attributes
    ----------
    session : str
        Calls with the same value belong to one run, in file order.
    turn : int
        0-based number of the call in its session.
    line : int
        1-based line in the file, for messages to the user.
    messages : sequence of mappings or None
        OpenAI chat messages, the whole prompt.
    tools : sequence of mappings
        Tool schemas, empty when the call has none.
    prompt : str or None
        An already rendered prompt (completions API).
    token_ids : sequence of int or None
        An already tokenised prompt.
    """

    session: str
    turn: int
    line: int
    messages: Sequence[Message] | None = None
    tools: Sequence[Message] = ()
    prompt: str | None = None
    token_ids: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class Malformed:
    """A line that was skipped: its 1-based number and why."""

    line: int
    reason: str


@dataclass(slots=True)
class TraceReader:
    """Iterate over the calls of one trace; lines that cannot be read are counted and skipped.

    Iterating twice reads the file twice (standard input can be read once only).

    Attributes
    ----------
    source : str
        Path of the file, or ``-`` for standard input.
    malformed_count : int
        Lines skipped so far.
    malformed : list of Malformed
        The first `keep_malformed` of them.
    """

    source: str
    keep_malformed: int = 20
    malformed_count: int = 0
    malformed: list[Malformed] = field(default_factory=list)
    _next_turn: dict[str, int] = field(default_factory=dict, repr=False)

    def __iter__(self) -> Iterator[Call]:
        self.malformed_count = 0
        self.malformed.clear()
        self._next_turn.clear()
        with contextlib.closing(_lines(self.source)) as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    yield self._parse(line, number)
                except (ValueError, RecursionError) as error:
                    self._reject(number, str(error) or type(error).__name__)

    def _reject(self, line: int, reason: str) -> None:
        self.malformed_count += 1
        if len(self.malformed) < self.keep_malformed:
            self.malformed.append(Malformed(line, reason))

    def _parse(self, line: bytes, number: int) -> Call:
        record = json.loads(line.decode("utf-8"))
        if not isinstance(record, dict):
            raise ValueError(f"a line must hold a JSON object, not {type(record).__name__}")
        body = _request_body(record)
        session = str(record.get("session", body.get("session", "")))
        turn = record.get("turn", self._next_turn.get(session, 0))
        if isinstance(turn, bool) or not isinstance(turn, int) or turn < 0:
            raise ValueError(f"'turn' must be an integer of at least 0, got {turn!r}")
        self._next_turn[session] = turn + 1
        return Call(session, turn, number, **_prompt_fields(body))


def read_calls(source: str | os.PathLike[str]) -> TraceReader:
    """Open a trace for iteration.

    Parameters
    ----------
    source : path or ``"-"``
        JSON lines, plain or compressed by gzip or zstd (told apart by content, not by name).
        ``"-"`` is standard input.

    Returns
    -------
    TraceReader
        Yields `Call`; counts malformed lines.

    Raises
    ------
    InvalidTrace
        The file cannot be opened, or its compression is damaged (raised while iterating).
    MissingExtra
        The file is compressed by zstd and the package ``zstandard`` is missing.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "calls.jsonl")
    ...     _ = path.write_text('{"session": "a", "turn": 0, "prompt": "hello"}')
    ...     [call.prompt for call in read_calls(path)]
    ['hello']
    """
    return TraceReader(os.fspath(source))


def _lines(source: str) -> Generator[bytes, None, None]:
    try:
        with contextlib.ExitStack() as stack:
            if source == "-":
                stream: Any = sys.stdin.buffer
            else:
                stream = stack.enter_context(open(source, "rb"))
            # A replaced standard input (tests, notebooks) may lack peek(): wrap whatever it is.
            yield from io.BufferedReader(_decompressed(io.BufferedReader(_Raw(stream)), stack))
    except (OSError, EOFError) as error:
        raise InvalidTrace(f"cannot read {source!r}: {error}") from error


class _Raw(io.RawIOBase):
    """The least that `io.BufferedReader` needs, over any object with ``read``."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _decompressed(raw: io.BufferedReader, stack: contextlib.ExitStack) -> io.RawIOBase:
    head = raw.peek(4)[:4]
    if head.startswith(_GZIP_MAGIC):
        return _Raw(stack.enter_context(gzip.open(raw)))
    return _Raw(_ZstdFile(raw) if head == _ZSTD_MAGIC else raw)


class _ZstdFile:
    """Frames of zstd in a row; unlike for zstandard's own reader, a cut-off file is an error."""

    def __init__(self, raw: io.BufferedReader) -> None:
        try:
            import zstandard
        except ImportError as error:
            raise MissingExtra(
                "reading a zstd-compressed trace needs the package zstandard: "
                "pip install 'irminsul-kv[cli]'"
            ) from error
        self._raw = raw
        self._new_frame = zstandard.ZstdDecompressor().decompressobj
        self._error = zstandard.ZstdError
        self._frame: Any = None
        self._ready = b""

    def read(self, size: int) -> bytes:
        while not self._ready and (block := self._raw.read1(_ZSTD_BLOCK_BYTES)):
            self._ready = self._feed(block)
        if not self._ready and self._frame is not None:
            raise EOFError("the zstd data ends in the middle of a frame")
        data, self._ready = self._ready[:size], self._ready[size:]
        return data

    def _feed(self, block: bytes) -> bytes:
        out = []
        while block:
            frame = self._frame or self._new_frame()
            try:
                out.append(frame.decompress(block))
            except self._error as error:
                raise OSError(str(error)) from error
            block = frame.unused_data if frame.eof else b""
            self._frame = None if frame.eof else frame
        return b"".join(out)


def _request_body(record: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a logged line that holds the request itself.

    Gateways log the request under a key of their own; the common ones are looked through in a
    fixed order, and a line without any of them is the request.
    """
    for key in ("body", "request", "obj"):
        inner = record.get(key)
        if isinstance(inner, dict) and _FORMS & inner.keys():
            return inner
    return record


_FORMS = frozenset({"messages", "prompt", "text", "token_ids", "prompt_token_ids", "input_ids"})


def _prompt_fields(body: dict[str, Any]) -> dict[str, Any]:
    for key in ("token_ids", "prompt_token_ids", "input_ids"):
        if body.get(key) is not None:
            return {"token_ids": _checked_ids(key, body[key])}
    if body.get("messages") is not None:
        return {
            "messages": _checked_objects("messages", body["messages"]),
            "tools": _checked_objects("tools", body.get("tools") or []),
        }
    for key in ("prompt", "text"):
        value = body.get(key)
        if isinstance(value, str):
            return {"prompt": value}
        if isinstance(value, list) and value:
            return {"token_ids": _checked_ids(key, value)}
    raise ValueError(f"no prompt: expected one of {', '.join(sorted(_FORMS))}")


def _checked_ids(key: str, value: Any) -> list[int]:
    if not isinstance(value, list) or not all(type(i) is int and 0 <= i < 2**32 for i in value):
        raise ValueError(f"{key!r} must be a list of token ids in [0, 2**32)")
    return value


def _checked_objects(key: str, value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError(f"{key!r} must be a list of objects")
    return value
