"""Logged calls -> token ids, call by call, kept in a file so that a trace is tokenised once.

Must not know caches of KV. Any object with `encode_pieces` serves as the tokenizer.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from irminsul.traces import template
from irminsul.traces.reader import Call, TraceReader, read_calls

__all__ = ["Corpus", "PieceEncoder", "TokenizedCall", "load_corpus", "tokenize_call"]

TokenArray = npt.NDArray[np.uint32]

_HASH_BLOCK_BYTES = 1 << 20


class PieceEncoder(Protocol):
    """What turns prompt pieces into ids; `irminsul.tokenizer.Encoder` is one."""

    @property
    def path(self) -> Path:
        """Return the tokenizer file, whose bytes say which tokenizer this is."""
        ...

    def encode_pieces(self, pieces: Iterable[str], /) -> TokenArray:
        """Return the ids of the concatenated pieces, uint32 [n]."""
        ...


@dataclass(frozen=True, slots=True)
class TokenizedCall:
    """One call as a cache sees it: ``tokens`` is uint32 [n]."""

    session: str
    turn: int
    line: int
    tokens: TokenArray


@dataclass(frozen=True, slots=True)
class Corpus:
    """All calls of a trace.

    Attributes
    ----------
    tokens : uint32 [sum of prompt lengths]
    bounds : int64 [calls + 1]
        Call ``i`` is ``tokens[bounds[i]:bounds[i + 1]]``.
    sessions : list of str, one per call
    turns, lines : int32 [calls]
        Number in the session, and line of the file.
    malformed : int
        Lines that could not be read.
    """

    tokens: TokenArray
    bounds: npt.NDArray[np.int64]
    sessions: list[str]
    turns: npt.NDArray[np.int32]
    lines: npt.NDArray[np.int32]
    malformed: int = 0

    def __len__(self) -> int:
        return len(self.turns)

    def __iter__(self) -> Iterator[TokenizedCall]:
        for i, session in enumerate(self.sessions):
            part = self.tokens[self.bounds[i] : self.bounds[i + 1]]
            yield TokenizedCall(session, int(self.turns[i]), int(self.lines[i]), part)

    @property
    def prompts(self) -> list[TokenArray]:
        """The calls' tokens in order."""
        return [call.tokens for call in self]


def tokenize_call(call: Call, encoder: PieceEncoder) -> TokenizedCall:
    """Render and encode one call; ids that were logged are taken as they are.

    Parameters
    ----------
    call : Call
        From `irminsul.traces.reader.read_calls`.
    encoder : PieceEncoder
        From `irminsul.tokenizer.load_tokenizer`. A method ``render(messages, tools)``, if it has
        one, replaces the default rendering (`irminsul.traces.jinja.JinjaEncoder`).
    """
    if call.token_ids is not None:
        tokens = np.array(call.token_ids, dtype=np.uint32)
    elif call.messages is not None:
        render = getattr(encoder, "render", template.render_pieces)
        tokens = encoder.encode_pieces(render(call.messages, call.tools))
    else:
        tokens = encoder.encode_pieces([call.prompt or ""])
    return TokenizedCall(call.session, call.turn, call.line, tokens)


def load_corpus(
    source: str | os.PathLike[str],
    encoder: PieceEncoder,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Corpus:
    """Read and tokenise a trace, or take it from `cache_dir` when it was tokenised before.

    Parameters
    ----------
    source : path
        As for `irminsul.traces.reader.read_calls`; ``"-"`` is never cached.
    encoder : PieceEncoder
        From `irminsul.tokenizer.load_tokenizer`.
    cache_dir : path, optional
        Made when missing. A cached file is used only when trace, tokenizer and template are
        byte for byte those it was made from.

    Returns
    -------
    Corpus
        Calls with an empty prompt are left out.

    Raises
    ------
    InvalidTrace
        The file cannot be read.
    """
    reader = read_calls(source)
    if cache_dir is None or reader.source == "-":
        return _tokenize(reader, encoder)
    rendering = getattr(encoder, "template_path", Path(template.__file__))
    cached = Path(cache_dir) / f"{_digest(Path(source), (encoder.path, rendering))}.npz"
    corpus = _read(cached)
    if corpus is None:
        corpus = _tokenize(reader, encoder)
        _write(cached, corpus)
    return corpus


def _tokenize(reader: TraceReader, encoder: PieceEncoder) -> Corpus:
    calls = [call for c in reader if len((call := tokenize_call(c, encoder)).tokens)]
    bounds = np.zeros(len(calls) + 1, np.int64)
    np.cumsum([len(call.tokens) for call in calls], out=bounds[1:])
    return Corpus(
        tokens=np.concatenate([call.tokens for call in calls] or [np.empty(0, np.uint32)]),
        bounds=bounds,
        sessions=[call.session for call in calls],
        turns=np.array([call.turn for call in calls], np.int32),
        lines=np.array([call.line for call in calls], np.int32),
        malformed=reader.malformed_count,
    )


def _digest(trace: Path, parts: tuple[Path, Path]) -> str:
    digest = hashlib.sha256()
    for path in (trace, *parts):
        # Each file's own digest has a fixed length, so no two pairs of files look alike.
        digest.update(_file_digest(path))
    return digest.hexdigest()[:32]


def _file_digest(path: Path) -> bytes:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_HASH_BLOCK_BYTES):
                digest.update(block)
    except OSError:
        # The reader opens the same file next and says what is wrong with it.
        return bytes(32)
    return digest.digest()


def _read(path: Path) -> Corpus | None:
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            return Corpus(
                tokens=arrays["tokens"],
                bounds=arrays["bounds"],
                sessions=arrays["sessions"].tolist(),
                turns=arrays["turns"],
                lines=arrays["lines"],
                malformed=int(arrays["malformed"]),
            )
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def _write(path: Path, corpus: Corpus) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
        np.savez(
            file,
            tokens=corpus.tokens,
            bounds=corpus.bounds,
            sessions=np.array(corpus.sessions, dtype=np.str_),
            turns=corpus.turns,
            lines=corpus.lines,
            malformed=corpus.malformed,
        )
    # A reader sees the whole file or none, also when two processes write the same one.
    Path(file.name).replace(path)
