"""Token ids with image or audio placeholders -> ids that only equal content makes equal.

Must not know registries: what it returns is recorded or looked up like any other tokens.

Every image of a prompt is the same placeholder id, so ids alone would take one image for another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from irminsul.errors import InvalidParams, InvalidTokens

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Opaque", "mask_opaque"]

TokenArray = npt.NDArray[np.uint32]

# Vocabularies are far smaller than 2**31, so ids from here on are free to stand for content.
_CONTENT_BIT = 1 << 31

# Two ids, one for each side, so that a range without a hash never equals anything.
_NEVER_RECORDED = 0xFFFF_FFFF
_NEVER_LOOKED_UP = 0xFFFF_FFFE

_MIN_HASH_BYTES = 16


@dataclass(frozen=True, slots=True)
class Opaque:
    """Positions ``[start, end)`` whose rows depend on more than their token ids.

    Attributes
    ----------
    start, end : int
        Token positions in the sequence given, ``start < end``.
    content_hash : bytes or None
        Cryptographic digest of everything that the rows depend on (pixels after preprocessing,
        the processor's settings), at least 16 bytes. Ranges of equal hash and length are equal.
        None: the range is never reused.
    """

    start: int
    end: int
    content_hash: bytes | None = None


def mask_opaque(
    tokens: Sequence[int] | npt.NDArray[Any], ranges: Iterable[Opaque], *, recorded: bool
) -> TokenArray:
    """Replace the ids of opaque ranges by ids that stand for their content.

    Parameters
    ----------
    tokens : sequence of ids or integer array [n]
        Ids below 2**31; not changed.
    ranges : iterable of Opaque
        In any order, without overlaps.
    recorded : bool
        True for tokens that are recorded (`irminsul.Registry.add`), False for a prompt that is
        looked up. A range without a hash differs between the two, so it matches nothing.

    Returns
    -------
    uint32 [n]
        Ids for the registry; the model still gets the original ones.

    Raises
    ------
    InvalidParams
        A range is empty, lies outside the sequence, overlaps another, or has a short hash.
    InvalidTokens
        An id is negative or not below 2**31.

    Notes
    -----
    The ids of a hashed range are SHAKE-256 of its length (8 bytes, little-endian) and the hash, 31
    bits a token with the top bit set. The registry compares ids one by one, so a range of five
    tokens compares 155 bits.
    Give the same ranges for a parent and its children in a registry's forest.

    Examples
    --------
    >>> from irminsul.opaque import Opaque, mask_opaque
    >>> image = Opaque(1, 3, content_hash=bytes(32))
    >>> mask_opaque([5, 9, 9, 6], [image], recorded=True).tolist()
    [5, 2169456238, 4013420973, 6]
    """
    plain = _checked_tokens(tokens)
    masked = plain.astype(np.uint32)
    position = 0
    for opaque in sorted(ranges, key=lambda opaque: opaque.start):
        _check(opaque, position, len(masked))
        position = opaque.end
        masked[opaque.start : opaque.end] = _content_ids(opaque, recorded)
    return masked


def _checked_tokens(tokens: Sequence[int] | npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    array = np.asarray(tokens)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InvalidTokens(
            f"tokens must be one-dimensional integers, got {array.ndim} dimensions of {array.dtype}"
        )
    outside = (array < 0) | (array >= _CONTENT_BIT)
    if outside.any():
        raise InvalidTokens(f"token id {array[outside][0]} lies outside [0, 2**31)")
    return array.astype(np.int64)


def _check(opaque: Opaque, previous_end: int, length: int) -> None:
    if not previous_end <= opaque.start < opaque.end <= length:
        raise InvalidParams(
            f"opaque range [{opaque.start}, {opaque.end}) must not be empty, and must lie within "
            f"[{previous_end}, {length}): after the range before it and inside the tokens"
        )
    digest = opaque.content_hash
    if digest is not None and not (
        isinstance(digest, bytes | bytearray) and len(digest) >= _MIN_HASH_BYTES
    ):
        raise InvalidParams(
            f"content_hash must be at least {_MIN_HASH_BYTES} bytes, a cryptographic digest, "
            f"got {digest!r}"
        )


def _content_ids(opaque: Opaque, recorded: bool) -> TokenArray | np.uint32:
    if opaque.content_hash is None:
        return np.uint32(_NEVER_LOOKED_UP if recorded else _NEVER_RECORDED)
    length = opaque.end - opaque.start
    seed = length.to_bytes(8, "little") + opaque.content_hash
    stream = hashlib.shake_256(seed).digest(4 * length)
    ids = np.frombuffer(stream, dtype="<u4").astype(np.uint32) | np.uint32(_CONTENT_BIT)
    # The two ids for ranges without a hash stay out of reach.
    ids[ids >= _NEVER_LOOKED_UP] = _CONTENT_BIT
    return ids
