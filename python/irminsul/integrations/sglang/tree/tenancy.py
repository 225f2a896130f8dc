"""A client's cache salt and extra key -> one string that no other pair of them gives.

Must not know the registry or the tree.

Before 0.5.18 SGLang's HTTP layer joins ``cache_salt`` and ``extra_key`` into one ``extra_key``
without a separator, so ("ab", "c") and ("a", "bc") would share cached text, in SGLang's own tree as
well as in irminsul's registry. The hook here writes the salt's length between them.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

_MODULE = "sglang.srt.entrypoints.openai.serving_base"
TARGET = f"{_MODULE}.OpenAIServingBase._compute_extra_key"

# Begins every key that was made here; a client's own key that begins so is marked as well.
_MARK = "\0irminsul-salt:"

# Clients choose salts and keys of any length, and the registry keeps each several times.
_LONGEST_TENANT = 256


def joins_salts() -> bool:
    """Return whether this SGLang joins salts and keys; its source is read, not imported."""
    found = importlib.util.find_spec(_MODULE)
    if found is None or found.origin is None:
        return False
    return f"def {TARGET.rsplit('.', 1)[1]}(" in Path(found.origin).read_text(encoding="utf-8")


def joined(salt: str | None, key: str | None) -> str | None:
    """Return one key for `salt` and `key`; different pairs give different keys.

    Without a salt the key stays as it is, so that requests that bring the joined form by another
    way, such as SGLang's native endpoint, meet the same cache.
    """
    if salt:
        return f"{_MARK}{len(salt)}:{salt}{key or ''}"
    if key and key.startswith(_MARK):
        return f"{_MARK}-:{key}"
    return key or None


def tenant(*fields: str | None) -> bytes:
    """Return a namespace's tenant for a client's fields; different fields give different ones.

    Long ones are known by their SHA-256, behind a byte that begins no other.
    """
    framed = b"".join(_framed(field) for field in fields)
    if len(framed) <= _LONGEST_TENANT:
        return framed
    return b"\2" + hashlib.sha256(framed).digest()


def _framed(field: str | None) -> bytes:
    """Encode so that no two lists of fields read the same: absent, or length and bytes."""
    if field is None:
        return b"\0"
    encoded = field.encode("utf-8", "surrogatepass")
    return b"\1" + len(encoded).to_bytes(8, "little") + encoded


def around_extra_key(original: Callable[..., Any], serving: Any, request: Any, backend: str) -> Any:
    """Around ``OpenAIServingBase._compute_extra_key``, where the server uses `backend`."""
    # SGLang's own first: it checks the types.
    stock = original(serving, request)
    manager = getattr(serving, "tokenizer_manager", None)
    arguments = getattr(manager, "server_args", None)
    if getattr(arguments, "radix_cache_backend", None) != backend:
        return stock
    return joined(getattr(request, "cache_salt", None), getattr(request, "extra_key", None))
