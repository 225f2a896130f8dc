"""Structs of cuda/include/irminsul/abi.h -> the same for ctypes, field by field.

Knows only that header; `irminsul.native.abi` compares their sizes with the library's.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any, ClassVar

ABI_VERSION = 1


class Params(ctypes.Structure):
    """A parameter struct: ``size`` and ``version`` come first and fill themselves in."""

    _fields_: ClassVar[list[tuple[str, Any]]] = []

    def __init__(self, **fields: Any) -> None:
        super().__init__(size=ctypes.sizeof(type(self)), version=ABI_VERSION, **fields)


class RelocateReport(ctypes.Structure):
    """IrmRelocateReport: the device writes it, the host reads it."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("row", c_int64),
        ("value", c_int64),
        ("code", c_int32),
        ("reserved", c_int32),
    ]


class RelocateParams(Params):
    """IrmRelocateParams."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("size", c_uint32),
        ("version", c_uint32),
        ("layer_addresses", ctypes.POINTER(c_uint64)),
        ("layer_strides", ctypes.POINTER(c_int64)),
        ("source_slots", c_void_p),
        ("target_slots", c_void_p),
        ("deltas", c_void_p),
        ("cos_sin", c_void_p),
        ("num_rows", c_int64),
        ("num_slots", c_int64),
        ("num_positions", c_int64),
        ("workspace", c_void_p),
        ("workspace_bytes", c_uint64),
        ("report", c_void_p),
        ("stream", c_void_p),
        ("num_layers", c_int32),
        ("row_format", c_int32),
        ("interleaved", c_int32),
        ("delta_bytes", c_int32),
    ]


class MlaTile(ctypes.Structure):
    """IrmMlaTile: one entry of a tile table."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("page", c_int32),
        ("lo", c_uint16),
        ("hi", c_uint16),
        ("delta", c_int32),
        ("pos0", c_int32),
    ]


class MlaTilesParams(Params):
    """IrmMlaTilesParams."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("size", c_uint32),
        ("version", c_uint32),
        ("indices", c_void_p),
        ("deltas", c_void_p),
        ("key_lens", c_void_p),
        ("row_stride", c_int64),
        ("tiles", c_void_p),
        ("tile_start", c_void_p),
        ("tile_count", c_void_p),
        ("stream", c_void_p),
        ("num_rows", c_int32),
        ("capacity", c_int32),
        ("by_slot", c_int32),
        ("reserved", c_int32),
    ]


class MlaPlanParams(Params):
    """IrmMlaPlanParams."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("size", c_uint32),
        ("version", c_uint32),
        ("q_indptr", c_void_p),
        ("q_pos", c_void_p),
        ("tile_start", c_void_p),
        ("tile_count", c_void_p),
        ("tiles", c_void_p),
        ("plan", c_void_p),
        ("plan_bytes", c_uint64),
        ("stream", c_void_p),
        ("num_rows", c_int32),
        ("total_q", c_int32),
        ("num_heads", c_int32),
        ("max_q_len", c_int32),
        ("cluster", c_int32),
        ("reserved", c_int32),
    ]


class MlaAttentionParams(Params):
    """IrmMlaAttentionParams."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("size", c_uint32),
        ("version", c_uint32),
        ("q", c_void_p),
        ("cache", c_void_p),
        ("tiles", c_void_p),
        ("cos_sin", c_void_p),
        ("out", c_void_p),
        ("lse", c_void_p),
        ("plan", c_void_p),
        ("plan_bytes", c_uint64),
        ("workspace", c_void_p),
        ("workspace_bytes", c_uint64),
        ("stream", c_void_p),
        ("num_pages", c_int64),
        ("page_stride", c_int64),
        ("scale", c_float),
        ("num_positions", c_int32),
        ("interleaved", c_int32),
        ("num_rows", c_int32),
        ("total_q", c_int32),
        ("num_heads", c_int32),
        ("max_q_len", c_int32),
        ("cluster", c_int32),
        ("turned", c_void_p),
        ("num_tiles", c_int64),
    ]


class MlaTurnParams(Params):
    """IrmMlaTurnParams."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("size", c_uint32),
        ("version", c_uint32),
        ("cache", c_void_p),
        ("tiles", c_void_p),
        ("tile_start", c_void_p),
        ("tile_count", c_void_p),
        ("cos_sin", c_void_p),
        ("slabs", c_void_p),
        ("stream", c_void_p),
        ("page_stride", c_int64),
        ("num_tiles", c_int64),
        ("num_rows", c_int32),
        ("num_positions", c_int32),
        ("interleaved", c_int32),
        ("reserved", c_int32),
    ]


class MlaWidenParams(Params):
    """IrmMlaWidenParams."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("size", c_uint32),
        ("version", c_uint32),
        ("cache", c_void_p),
        ("tiles", c_void_p),
        ("tile_start", c_void_p),
        ("tile_count", c_void_p),
        ("pages", c_void_p),
        ("wide_tiles", c_void_p),
        ("stream", c_void_p),
        ("page_stride", c_int64),
        ("num_tiles", c_int64),
        ("num_rows", c_int32),
        ("reserved", c_int32),
    ]


class SpanRun(ctypes.Structure):
    """IrmSpanRun: tokens that are all computed or all moved."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("given", c_uint64),
        ("sources", c_uint64),
        ("first", c_int64),
        ("count", c_int64),
        ("value", c_int64),
    ]


class SpansParams(Params):
    """IrmSpansParams."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("size", c_uint32),
        ("version", c_uint32),
        ("runs", c_void_p),
        ("numbers", c_void_p),
        ("num_computed", c_int64),
        ("num_moved", c_int64),
        ("stream", c_void_p),
        ("num_runs", c_int32),
        ("reserved", c_int32),
    ]


STRUCTS: dict[int, type[ctypes.Structure]] = {
    0: RelocateParams,
    1: RelocateReport,
    2: MlaTile,
    3: MlaTilesParams,
    4: MlaPlanParams,
    5: MlaAttentionParams,
    6: MlaWidenParams,
    7: MlaTurnParams,
    8: SpanRun,
    9: SpansParams,
}
"""IrmStruct -> mirror."""
