"""One chunk's rows of all layers <-> the bytes a pool holds, which say what they are.

Must not know where bytes come from or go to. Nothing read here is trusted: every field is checked
against what the reader asked for, and the first that differs rejects the value by name.

Format 1, little-endian: a fixed head (`_HEAD`), the checksum, the layout's name, the ids (u32),
zeros up to a multiple of 64, the rows [layers, tokens, row_bytes]. The checksum is XXH3-128 over
the whole value with its own 16 bytes left out; it finds damage, not malice (`docs/security.md`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from irminsul.errors import InvalidParams, InvalidTensor, IrminsulError, MissingExtra
from irminsul.tiers.keys import ChunkRef, ChunkSpace, RowLayout

__all__ = ["VALUE_VERSION", "ChunkRows", "Rejected", "decode", "encode_into", "encoded_bytes"]

VALUE_VERSION = 1

_MAGIC = b"IRMINSUL"
# magic, version, bytes before the rows, namespace digest, base position, hops, depth, tokens,
# layers, bytes of a row, bytes of the layout's name.
_HEAD = struct.Struct("<8sII32sQIIIIII")
_CHECKSUM_BYTES = 16
_ALIGNMENT = 64
_U32 = 1 << 32
_MAX_POSITION = 1 << 62


class Rejected(IrminsulError, ValueError):
    """A value is not what its key promises; ``reason`` is one word for counters."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


@dataclass(frozen=True, eq=False)
class ChunkRows:
    """Rows of one chunk as they were computed.

    Parameters
    ----------
    ref : ChunkRef
        Which chunk.
    base_position : int
        Position at which the first row was computed, in [0, 2**62).
    hops, depth : int
        Rotations the rows have been through, and how deep an approximation they are (0: computed
        behind exact context only).
    rows : ndarray, uint8, [layers, tokens, row_bytes]
        ``c_KV`` and ``k_r`` as they lie in the engine's pool; C-contiguous.

    Raises
    ------
    InvalidTensor
        ``rows`` has another shape, dtype or order.
    InvalidParams
        A number lies outside its range.
    """

    ref: ChunkRef
    base_position: int
    hops: int
    depth: int
    rows: NDArray[np.uint8]

    def __post_init__(self) -> None:
        expected = rows_shape(self.ref)
        if self.rows.dtype != np.uint8 or self.rows.shape != expected:
            raise InvalidTensor(
                f"rows must be uint8 {list(expected)}, got {self.rows.dtype} "
                f"{list(self.rows.shape)}"
            )
        if not self.rows.flags.c_contiguous:
            raise InvalidTensor("rows must be C-contiguous")
        if not 0 <= self.base_position < _MAX_POSITION:
            raise InvalidParams(f"base_position must lie in [0, 2**62), got {self.base_position}")
        for name, value in (("hops", self.hops), ("depth", self.depth)):
            if not 0 <= value < _U32:
                raise InvalidParams(f"{name} must lie in [0, 2**32), got {value}")


def rows_shape(ref: ChunkRef) -> tuple[int, int, int]:
    """Return the shape of a chunk's rows, [layers, tokens, row_bytes]."""
    layout = ref.space.layout
    return layout.layers, len(ref.tokens), layout.row_bytes


def encoded_bytes(ref: ChunkRef) -> int:
    """Return how many bytes the value of `ref` has; a reader knows it before it asks."""
    return _rows_offset(ref.space.layout, len(ref.tokens)) + ref.row_bytes


def encode_into(chunk: ChunkRows, target: NDArray[np.uint8]) -> None:
    """Write the value of `chunk` to `target`.

    Parameters
    ----------
    chunk : ChunkRows
        What to write.
    target : ndarray, uint8, [encoded_bytes(chunk.ref)]
        Overwritten whole.

    Raises
    ------
    InvalidTensor
        ``target`` has another size.
    MissingExtra
        The package ``xxhash`` is not installed.
    """
    ref = chunk.ref
    if target.dtype != np.uint8 or target.shape != (encoded_bytes(ref),):
        raise InvalidTensor(
            f"target must be uint8 [{encoded_bytes(ref)}], got {target.dtype} {list(target.shape)}"
        )
    layout, offset = ref.space.layout, _rows_offset(ref.space.layout, len(ref.tokens))
    head = _head(ref.space, offset, len(ref.tokens), chunk)
    target[:offset] = 0
    _put(target, 0, head)
    _put(target, _NAME_AT, layout.name.encode("ascii"))
    _put(target, _NAME_AT + len(layout.name), ref.tokens.astype("<u4").tobytes())
    np.copyto(target[offset:], chunk.rows.reshape(-1))
    _put(target, _HEAD.size, _checksum(target))


def decode(ref: ChunkRef, value: NDArray[np.uint8]) -> ChunkRows:
    """Read the value that was found under the key of `ref`.

    Parameters
    ----------
    ref : ChunkRef
        What was asked for.
    value : ndarray, uint8, [any]
        What came back; C-contiguous.

    Returns
    -------
    ChunkRows
        Checked in every field. Its rows are a view of `value`.

    Raises
    ------
    Rejected
        ``size``, ``magic``, ``version``, ``checksum``, ``namespace``, ``layout``, ``tokens`` or
        ``range``: the first thing that is wrong.
    MissingExtra
        The package ``xxhash`` is not installed.
    """
    if value.shape != (encoded_bytes(ref),):
        raise Rejected("size", f"{value.size} bytes, {encoded_bytes(ref)} expected")
    fields = _HEAD.unpack(value[: _HEAD.size].tobytes())
    _check_head(ref, value, fields)
    base_position, hops, depth = fields[4:7]
    if base_position >= _MAX_POSITION:
        raise Rejected("range", f"base position {base_position}")
    return ChunkRows(ref, base_position, hops, depth, value[fields[2] :].reshape(rows_shape(ref)))


_NAME_AT = _HEAD.size + _CHECKSUM_BYTES


def _rows_offset(layout: RowLayout, tokens: int) -> int:
    used = _NAME_AT + len(layout.name) + 4 * tokens
    return -(-used // _ALIGNMENT) * _ALIGNMENT


def _head(space: ChunkSpace, offset: int, tokens: int, chunk: ChunkRows) -> bytes:
    layout = space.layout
    return _HEAD.pack(
        _MAGIC,
        VALUE_VERSION,
        offset,
        space.digest,
        chunk.base_position,
        chunk.hops,
        chunk.depth,
        tokens,
        layout.layers,
        layout.row_bytes,
        len(layout.name),
    )


def _check_head(ref: ChunkRef, value: NDArray[np.uint8], fields: tuple[object, ...]) -> None:
    layout = ref.space.layout
    if fields[0] != _MAGIC:
        raise Rejected("magic", repr(fields[0]))
    if fields[1] != VALUE_VERSION:
        raise Rejected("version", f"{fields[1]}, {VALUE_VERSION} expected")
    if bytes(value[_HEAD.size : _NAME_AT]) != _checksum(value):
        raise Rejected("checksum", "the bytes are not those that were written")
    if fields[3] != ref.space.digest:
        raise Rejected("namespace", "the rows belong to another namespace")
    offset = _rows_offset(layout, len(ref.tokens))
    shape = (offset, len(ref.tokens), layout.layers, layout.row_bytes, len(layout.name))
    name_end = _NAME_AT + len(layout.name)
    name = bytes(value[_NAME_AT:name_end])
    if (fields[2], *fields[7:]) != shape or name != layout.name.encode("ascii"):
        raise Rejected("layout", f"{name!r} {fields[7:]}")
    ids = value[name_end : name_end + 4 * len(ref.tokens)].view(np.uint8).tobytes()
    if ids != ref.tokens.astype("<u4").tobytes():
        raise Rejected("tokens", "the rows belong to another text")


def _checksum(value: NDArray[np.uint8]) -> bytes:
    try:
        from xxhash import xxh3_128
    except ImportError as error:
        raise MissingExtra(
            'values of a shared pool need the package xxhash: pip install "irminsul-kv[mooncake]"'
        ) from error
    state = xxh3_128()
    state.update(value[: _HEAD.size].data)
    state.update(value[_NAME_AT:].data)
    return bytes(state.digest())


def _put(target: NDArray[np.uint8], offset: int, data: bytes) -> None:
    target[offset : offset + len(data)] = np.frombuffer(data, dtype=np.uint8)
