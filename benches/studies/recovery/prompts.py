"""Recorded traces -> the prompts of the study's cases: passages, one long prompt, edited forms.

Must not know caches.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from irminsul.tokenizer import Encoder
from irminsul.traces.corpus import load_corpus
from irminsul.traces.reader import read_calls

Tokens = npt.NDArray[np.uint32]

SUFFIX = ".jsonl.zst"


def sets(folder: Path) -> list[str]:
    """Return the names of the traces in a folder."""
    return sorted(path.name.removesuffix(SUFFIX) for path in folder.glob(f"*{SUFFIX}"))


def load(folder: Path, name: str, encoder: Encoder, cache: Path) -> list[Tokens]:
    return load_corpus(folder / f"{name}{SUFFIX}", encoder, cache).prompts


def passages(folder: Path, count: int, min_chars: int = 1500) -> list[str]:
    """Return the first distinct passages of the retrieval set, one from each prompt at most."""
    found: dict[str, None] = {}
    for call in read_calls(folder / f"rag_musique{SUFFIX}"):
        text = str((call.messages or [{}])[0].get("content"))
        long = [part for part in text.split("\n\n") if len(part) >= min_chars]
        if long:
            found.setdefault(long[0].strip())
        if len(found) == count:
            return list(found)
    raise SystemExit(f"{folder} holds fewer than {count} passages of {min_chars} characters")


def long_text(folder: Path, encoder: Encoder, tokens: int) -> str:
    """Return recorded passages joined up to about `tokens` tokens, none of them twice."""
    found: dict[str, None] = {}
    length = 0
    for call in read_calls(folder / f"rag_musique{SUFFIX}"):
        for part in str((call.messages or [{}])[0].get("content")).split("\n\n"):
            if len(part) >= 200 and part not in found:
                found[part] = None
                length += len(encoder.encode(part))
            if length >= tokens:
                return "\n\n".join(found)
    raise SystemExit(f"{folder} holds fewer than {tokens} tokens of passages")


def with_nonce(text: str, encoder: Encoder, nonce: str) -> Tokens:
    """Put a nonce into a header line near the start, as agent front ends do."""
    header = f"x-billing-header: version=2.1.37; entry=cli; cch={nonce};\nYou are an agent.\n"
    return encoder.encode(header + text)


def nonces(count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [f"{rng.integers(16**5):05x}" for _ in range(count)]
