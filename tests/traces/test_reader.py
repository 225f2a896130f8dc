"""Log lines of every accepted form, plain and compressed -> calls; damage -> counts and errors."""

import gzip
import io
import json
import sys

import pytest
import zstandard
from irminsul.errors import InvalidTrace
from irminsul.traces.reader import Call, read_calls

CHAT = {
    "session": "s",
    "turn": 0,
    "messages": [{"role": "user", "content": "héllo"}],
    "tools": [{"type": "function"}],
}


def lines(*records):
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def write(tmp_path, data):
    path = tmp_path / "calls.jsonl"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    "compress",
    [
        bytes,
        gzip.compress,
        zstandard.ZstdCompressor().compress,
        lambda data: (
            zstandard.ZstdCompressor().compress(data[:40])
            + zstandard.ZstdCompressor().compress(data[40:])
        ),
    ],
    ids=["plain", "gzip", "zstd", "two zstd frames"],
)
def test_compression_is_told_by_content(tmp_path, compress):
    path = write(tmp_path, compress(lines(CHAT, {**CHAT, "turn": 1})))
    calls = list(read_calls(path))
    assert calls[0] == Call("s", 0, 1, messages=CHAT["messages"], tools=CHAT["tools"])
    assert [(call.turn, call.line) for call in calls] == [(0, 1), (1, 2)]


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(lines(CHAT)))))
    assert [call.session for call in read_calls("-")] == ["s"]


@pytest.mark.parametrize(
    ("record", "field", "value"),
    [
        ({"prompt": "hi"}, "prompt", "hi"),
        ({"text": "hi"}, "prompt", "hi"),
        ({"prompt": [1, 2]}, "token_ids", [1, 2]),
        ({"token_ids": [7]}, "token_ids", [7]),
        ({"prompt_token_ids": [7]}, "token_ids", [7]),
        ({"input_ids": [7], "text": "ignored"}, "token_ids", [7]),
        ({"body": {"messages": []}, "custom_id": "a"}, "messages", []),
        ({"obj": {"text": "hi"}, "rid": "a"}, "prompt", "hi"),
        ({"request": {"prompt": "hi"}}, "prompt", "hi"),
    ],
)
def test_prompt_forms(tmp_path, record, field, value):
    [call] = read_calls(write(tmp_path, lines(record)))
    assert getattr(call, field) == value
    forms = [call.messages, call.prompt, call.token_ids]
    assert sum(form is not None for form in forms) == 1


def test_missing_turns_are_counted_per_session(tmp_path):
    records = [{"prompt": "x", "session": s} for s in "abab"] + [{"prompt": "x"}]
    calls = read_calls(write(tmp_path, lines(*records)))
    assert [(c.session, c.turn) for c in calls] == [
        ("a", 0),
        ("b", 0),
        ("a", 1),
        ("b", 1),
        ("", 0),
    ]


@pytest.mark.parametrize(
    "bad",
    [
        b"{",
        b"[1]",
        b'"text"',
        b'{"session": "s"}',
        b'{"messages": "hi"}',
        b'{"messages": [1]}',
        b'{"messages": [], "tools": [3]}',
        b'{"token_ids": [1, -1]}',
        b'{"token_ids": [1, 4294967296]}',
        b'{"token_ids": [true]}',
        b'{"token_ids": 5}',
        b'{"prompt": 5}',
        b'{"prompt": "x", "turn": -1}',
        b'{"prompt": "x", "turn": "1"}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_malformed_lines_are_counted_and_skipped(tmp_path, bad):
    reader = read_calls(write(tmp_path, lines(CHAT) + bad + b"\n\n" + lines({"prompt": "after"})))
    assert [call.line for call in reader] == [1, 4]
    assert reader.malformed_count == 1
    assert reader.malformed[0].line == 2
    assert reader.malformed[0].reason


def test_iterating_again_starts_over(tmp_path):
    reader = read_calls(write(tmp_path, b"{\n" + lines({"prompt": "x"})))
    assert [call.turn for call in reader] == [call.turn for call in reader] == [0]
    assert reader.malformed_count == 1


def test_only_the_first_malformed_lines_are_kept(tmp_path):
    reader = read_calls(write(tmp_path, b"{\n" * 50))
    assert list(reader) == []
    assert (reader.malformed_count, len(reader.malformed)) == (50, 20)


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_damaged_files_are_refused(tmp_path, compress):
    data = compress(lines(*[{**CHAT, "turn": i} for i in range(500)]))
    with pytest.raises(InvalidTrace, match="cannot read"):
        list(read_calls(write(tmp_path, data[: len(data) // 2] + b"\0" * 40)))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InvalidTrace, match="nowhere"):
        list(read_calls(tmp_path / "nowhere.jsonl"))
