"""Traces -> token corpora, and the file that keeps them."""

import json

import numpy as np
import pytest
from irminsul.errors import InvalidTrace
from irminsul.traces.corpus import load_corpus
from irminsul.traces.template import render_chat

MESSAGES = [{"role": "user", "content": "How many legs has a spider?"}]


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    records = [
        {"session": "a", "turn": 3, "messages": MESSAGES},
        {"prompt": ""},
        {"session": "b", "prompt": "Hello"},
        {"token_ids": [5, 2**32 - 1]},
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + "{\n")
    return path


class CountingEncoder:
    def __init__(self, inner):
        self.inner, self.calls = inner, 0
        self.path = self.inner.path

    def encode_pieces(self, pieces):
        self.calls += 1
        return self.inner.encode_pieces(pieces)


def test_every_form_of_prompt(trace, encoder):
    corpus = load_corpus(trace, encoder)
    assert [(call.session, call.turn) for call in corpus] == [("a", 3), ("b", 0), ("", 1)]
    chat, text, ids = corpus.prompts
    assert chat.tolist() == encoder.encode(render_chat(MESSAGES)).tolist()
    assert text.tolist() == encoder.encode("Hello").tolist()
    assert ids.tolist() == [5, 2**32 - 1]
    assert corpus.malformed == 1
    assert len(corpus) == 3


def test_a_trace_is_tokenised_once(trace, tmp_path, encoder):
    encoder = CountingEncoder(encoder)
    first = load_corpus(trace, encoder, tmp_path / "cache")
    calls = encoder.calls
    second = load_corpus(trace, encoder, tmp_path / "cache")
    assert encoder.calls == calls > 0
    np.testing.assert_array_equal(first.tokens, second.tokens)
    assert (first.sessions, first.malformed) == (second.sessions, second.malformed)
    assert [p.name for p in (tmp_path / "cache").iterdir() if p.suffix != ".npz"] == []


def test_a_changed_trace_or_damaged_file_is_tokenised_again(trace, tmp_path, encoder):
    cache = tmp_path / "cache"
    load_corpus(trace, encoder, cache)
    [kept] = cache.iterdir()
    kept.write_bytes(kept.read_bytes()[:100])
    assert len(load_corpus(trace, encoder, cache)) == 3
    trace.write_text('{"prompt": "new"}\n')
    assert len(load_corpus(trace, encoder, cache)) == 1
    assert len(list(cache.iterdir())) == 2


def test_nothing_to_read(tmp_path, encoder):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    corpus = load_corpus(empty, encoder)
    assert len(corpus) == 0
    assert corpus.prompts == []
    with pytest.raises(InvalidTrace):
        load_corpus(tmp_path / "missing", encoder, tmp_path / "cache")
