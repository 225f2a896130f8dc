"""Bytes -> xxHash64, from the published specification of the algorithm.

Knows nothing of tokens beyond the helper that encodes them.
"""

import struct
from collections.abc import Sequence

_MASK = (1 << 64) - 1
_P1 = 0x9E3779B185EBCA87
_P2 = 0xC2B2AE3D27D4EB4F
_P3 = 0x165667B19E3779F9
_P4 = 0x85EBCA77C2B2AE63
_P5 = 0x27D4EB2F165667C5


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _MASK


def _round(accumulator: int, lane: int) -> int:
    return _rotate((accumulator + lane * _P2) & _MASK, 31) * _P1 & _MASK


def _merge(value: int, accumulator: int) -> int:
    return ((value ^ _round(0, accumulator)) * _P1 + _P4) & _MASK


def _stripes(data: bytes, seed: int) -> tuple[int, int]:
    accumulators = [(seed + _P1 + _P2) & _MASK, (seed + _P2) & _MASK, seed, (seed - _P1) & _MASK]
    at = 0
    while at + 32 <= len(data):
        lanes = struct.unpack_from("<4Q", data, at)
        accumulators = [_round(a, lane) for a, lane in zip(accumulators, lanes, strict=True)]
        at += 32
    value = sum(_rotate(a, r) for a, r in zip(accumulators, (1, 7, 12, 18), strict=True)) & _MASK
    for accumulator in accumulators:
        value = _merge(value, accumulator)
    return value, at


def xxhash64(data: bytes, seed: int = 0) -> int:
    """Return the 64-bit hash of `data`."""
    value, at = _stripes(data, seed) if len(data) >= 32 else ((seed + _P5) & _MASK, 0)
    value = (value + len(data)) & _MASK
    while at + 8 <= len(data):
        lane = struct.unpack_from("<Q", data, at)[0]
        value = (_rotate(value ^ _round(0, lane), 27) * _P1 + _P4) & _MASK
        at += 8
    if at + 4 <= len(data):
        word = struct.unpack_from("<I", data, at)[0]
        value = (_rotate(value ^ (word * _P1 & _MASK), 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        value = _rotate(value ^ (byte * _P5 & _MASK), 11) * _P1 & _MASK
    value = (value ^ (value >> 33)) * _P2 & _MASK
    value = (value ^ (value >> 29)) * _P3 & _MASK
    return value ^ (value >> 32)


def fingerprint(tokens: Sequence[int]) -> int:
    """Return the fingerprint of a chunk: the hash of its ids as little-endian 32-bit words."""
    return xxhash64(struct.pack(f"<{len(tokens)}I", *tokens))
