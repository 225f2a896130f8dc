"""A chunk's token ids and who may share them -> the key under which a pool holds its rows.

Must not know tiers, engines or tensors: ids, a namespace and a row layout are all it sees.

A fingerprint finds candidates inside one process and proves nothing. A pool is shared, and its
key is all that stands between two texts, so it is a cryptographic digest of everything that makes
rows interchangeable: the format's version, the namespace and the ids themselves.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from irminsul import Namespace
from irminsul.errors import InvalidParams, InvalidTokens

__all__ = ["KEY_BYTES", "KEY_VERSION", "ChunkRef", "ChunkSpace", "RowLayout", "checked_ids"]

# Part of every key: values of another format live under other keys and are never read.
KEY_VERSION = 1
KEY_BYTES = 32

_KEY_PERSON = b"irminsul.chunk"
_NAMESPACE_PERSON = b"irminsul.space"
_MAX_LAYERS = 1 << 16
_MAX_ROW_BYTES = 1 << 20


@dataclass(frozen=True)
class RowLayout:
    """Shape of the rows that one token has.

    Parameters
    ----------
    name : str
        What the bytes of a row are, such as ``"mla-512+64-bfloat16"``; ASCII, 1 to 255 characters.
    layers : int
        Number of layers, 1 to 65,536.
    row_bytes : int
        Bytes of one token's row in one layer, 1 to 2**20.

    Raises
    ------
    InvalidParams
        A field lies outside its range.
    """

    name: str
    layers: int
    row_bytes: int

    def __post_init__(self) -> None:
        if not (self.name.isascii() and 1 <= len(self.name) <= 255):
            raise InvalidParams(f"name must be 1 to 255 ASCII characters, got {self.name!r}")
        for field, value, most in (
            ("layers", self.layers, _MAX_LAYERS),
            ("row_bytes", self.row_bytes, _MAX_ROW_BYTES),
        ):
            if not 1 <= value <= most:
                raise InvalidParams(f"{field} must lie in [1, {most}], got {value}")

    @property
    def token_bytes(self) -> int:
        """Bytes that all layers hold for one token."""
        return self.layers * self.row_bytes


@dataclass(frozen=True)
class ChunkRef:
    """One chunk as tiers name it.

    Parameters
    ----------
    space : ChunkSpace
        Who may share the rows, and their layout.
    tokens : ndarray, uint32, [n]
        The chunk's ids, read-only.
    key : bytes, [32]
        The digest over both.
    """

    space: ChunkSpace
    tokens: NDArray[np.uint32]
    key: bytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChunkRef) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def row_bytes(self) -> int:
        """Bytes of the chunk's rows in all layers."""
        return len(self.tokens) * self.space.layout.token_bytes


@dataclass(frozen=True)
class ChunkSpace:
    """Everything but the ids that a chunk's key depends on.

    Parameters
    ----------
    namespace : Namespace
        Model, KV layout, RoPE, LoRA and tenant. Its `encode` is unambiguous, so two namespaces
        have two digests.
    layout : RowLayout
        Not part of the key: a value says its layout itself, and one that differs is a miss. Put
        what makes rows incomparable (dtype, layers of a pipeline stage) into ``kv_layout``.

    Notes
    -----
    Key: BLAKE2b-256, personalised ``irminsul.chunk``, over the version (u32), the length of the
    encoded namespace (u64), the encoded namespace, the number of ids (u64) and the ids (u32 each),
    all little-endian. Golden vectors: ``tests/golden/tiers.json``.

    Examples
    --------
    >>> from irminsul import Namespace
    >>> space = ChunkSpace(Namespace(tenant="a"), RowLayout("mla-512+64-bfloat16", 27, 1152))
    >>> space.ref([1, 2, 3]).key.hex()[:16]
    '96c847c3b589086e'
    """

    namespace: Namespace
    layout: RowLayout

    @cached_property
    def digest(self) -> bytes:
        """BLAKE2b-256 of the encoded namespace, personalised ``irminsul.space``."""
        encoded = self.namespace.encode()
        return hashlib.blake2b(encoded, digest_size=KEY_BYTES, person=_NAMESPACE_PERSON).digest()

    def ref(self, tokens: ArrayLike) -> ChunkRef:
        """Return the reference of the chunk with these ids.

        Parameters
        ----------
        tokens : array-like of integers in [0, 2**32), [n], n >= 1
            Copied.

        Raises
        ------
        InvalidTokens
            The ids are not that.
        """
        return self._ref(checked_ids(tokens))

    def refs(self, tokens: ArrayLike, bounds: Iterable[int]) -> list[ChunkRef]:
        """Return the references of the chunks between consecutive `bounds` of `tokens`."""
        ids = checked_ids(tokens)
        return [self.part(ids, start, end) for start, end in itertools.pairwise(bounds)]

    def part(self, ids: NDArray[np.uint32], start: int, end: int) -> ChunkRef:
        """Return the reference of a part of `ids`, which `checked_ids` has returned."""
        # A copy: a reference may live long, and a view would keep the whole prompt alive.
        own = ids[start:end].copy()
        own.flags.writeable = False
        return self._ref(own)

    def _ref(self, ids: NDArray[np.uint32]) -> ChunkRef:
        digest = self._seeded.copy()
        digest.update(len(ids).to_bytes(8, "little"))
        digest.update(ids.astype("<u4", copy=False).tobytes())
        return ChunkRef(self, ids, digest.digest())

    @cached_property
    def _seeded(self) -> hashlib.blake2b:
        encoded = self.namespace.encode()
        digest = hashlib.blake2b(digest_size=KEY_BYTES, person=_KEY_PERSON)
        digest.update(KEY_VERSION.to_bytes(4, "little"))
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
        return digest


def checked_ids(tokens: ArrayLike) -> NDArray[np.uint32]:
    """Return `tokens` as a read-only copy of 32-bit ids.

    Raises
    ------
    InvalidTokens
        They are no integers in [0, 2**32), or none at all.
    """
    ids = np.asarray(tokens)
    if ids.ndim != 1 or ids.size == 0 or ids.dtype.kind not in "iu":
        raise InvalidTokens(
            f"a chunk needs a 1-D array of at least one integer id, got {ids.dtype} "
            f"{list(ids.shape)}"
        )
    if ids.dtype != np.uint32:
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= 1 << 32:
            raise InvalidTokens(f"ids must lie in [0, 2**32), got {low if low < 0 else high}")
    ids = ids.astype(np.uint32)
    ids.flags.writeable = False
    return ids
