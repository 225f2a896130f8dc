"""Recorded token ids -> donors for later prompts, and one registry for the whole process.

Knows nothing of engines: a node is a number that the host chose.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from irminsul._core import Namespace, Registry, ReusePlan

if TYPE_CHECKING:
    from irminsul._core import _Tokens

__all__ = ["Namespace", "Registry", "default_registry", "lookup", "record"]

# At most 10 bytes for each, 160 MiB when full.
_DEFAULT_CAPACITY_TOKENS = 1 << 24

_lock = threading.Lock()
_default: Registry | None = None


def default_registry() -> Registry:
    """Return the process-wide registry, made on first use with room for 2**24 tokens.

    Returns
    -------
    Registry
        The one that :func:`lookup` and :func:`record` use.
    """
    global _default
    with _lock:
        if _default is None:
            _default = Registry(_DEFAULT_CAPACITY_TOKENS)
        return _default


def record(
    tokens: _Tokens,
    location: int,
    *,
    namespace: Namespace | None = None,
    base_position: int = 0,
) -> None:
    """Record tokens whose KV rows lie at `location` in the process-wide registry.

    Parameters
    ----------
    tokens : sequence, 1-D integer array or CPU tensor of ids in [0, 2**32)
        The ids, copied.
    location : int
        Any number in [0, 2**64) that says where the rows are; plans give it back as `Piece.node`.
    namespace : Namespace, optional
        What may share the rows; the empty namespace by default.
    base_position : int
        Position at which the first row was computed.

    Raises
    ------
    InvalidTokens
        The ids cannot be used.
    DuplicateNode
        Something is recorded at `location` already.
    RegistryFull
        The tokens exceed the capacity, or pinned ones leave no room.

    Examples
    --------
    >>> import irminsul
    >>> text = [(i * 2654435761) % 100003 for i in range(1000)]
    >>> irminsul.record(text, 7)
    >>> irminsul.lookup([1, 2, 3, *text]).reused_tokens
    967
    """
    namespace = Namespace() if namespace is None else namespace
    registry = default_registry()
    registry.record(tokens, location, namespace=namespace, base_position=base_position)


def lookup(
    tokens: _Tokens, *, namespace: Namespace | None = None, prefix_len: int = 0
) -> ReusePlan:
    """Plan the reuse of what the process-wide registry holds.

    Parameters
    ----------
    tokens : sequence, 1-D integer array or CPU tensor of ids in [0, 2**32)
        The whole prompt.
    namespace : Namespace, optional
        As given to :func:`record`.
    prefix_len : int
        Positions that the engine's own prefix cache covers; the plan starts after them.

    Returns
    -------
    ReusePlan
        Segments that tile [prefix_len, len(tokens)).

    Raises
    ------
    InvalidTokens
        The ids cannot be used.
    InvalidParams
        The prefix is longer than the prompt.
    """
    namespace = Namespace() if namespace is None else namespace
    return default_registry().lookup(tokens, namespace=namespace, prefix_len=prefix_len)
