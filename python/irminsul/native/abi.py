"""cuda/include/irminsul/abi.h -> the same structs, codes and signatures for ctypes.

Knows only that header. The loader compares version and struct sizes with the library's before
anything is called, so a mirror that lags behind is an error and never a wrong read.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    c_char_p,
    c_float,
    c_int32,
    c_int64,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from enum import IntEnum
from typing import Any, ClassVar

from irminsul.errors import (
    CudaError,
    InvalidParams,
    IrminsulError,
    NativeUnavailable,
    Unsupported,
)

ABI_VERSION = 1


class Status(IntEnum):
    """IrmStatus."""

    OK = 0
    ERROR_ABI = 1
    ERROR_ARGUMENT = 2
    ERROR_DEVICE = 3
    ERROR_WORKSPACE = 4
    ERROR_CUDA = 5


class RowFormat(IntEnum):
    """IrmRowFormat."""

    BF16 = 0
    E4M3 = 1


class RelocateFault(IntEnum):
    """IrmRelocateFault."""

    NONE = 0
    SOURCE_SLOT = 1
    TARGET_SLOT = 2
    DELTA = 3
    OVERLAP = 4
    TWICE = 5


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

SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "irm_abi_version": (c_uint32, []),
    "irm_struct_size": (c_uint32, [c_int32]),
    "irm_build_info": (c_char_p, []),
    "irm_last_error": (c_char_p, []),
    "irm_check_device": (c_int32, [c_int32]),
    "irm_relocate_workspace_bytes": (c_uint64, [c_int64]),
    "irm_relocate_rows": (c_int32, [ctypes.POINTER(RelocateParams)]),
    "irm_mla_plan_bytes": (c_uint64, [c_int64, c_int64, c_int64]),
    "irm_mla_workspace_bytes": (c_uint64, []),
    "irm_mla_tiles": (c_int32, [ctypes.POINTER(MlaTilesParams)]),
    "irm_mla_plan": (c_int32, [ctypes.POINTER(MlaPlanParams)]),
    "irm_mla_turn": (c_int32, [ctypes.POINTER(MlaTurnParams)]),
    "irm_mla_attention": (c_int32, [ctypes.POINTER(MlaAttentionParams)]),
    "irm_mla_fp8_attention": (c_int32, [ctypes.POINTER(MlaAttentionParams)]),
    "irm_mla_fp8_widen": (c_int32, [ctypes.POINTER(MlaWidenParams)]),
    "irm_write_spans": (c_int32, [ctypes.POINTER(SpansParams)]),
}
"""Entry -> result type, argument types."""

_ERRORS: dict[int, type[IrminsulError]] = {
    Status.ERROR_ABI: NativeUnavailable,
    Status.ERROR_ARGUMENT: InvalidParams,
    Status.ERROR_DEVICE: Unsupported,
    Status.ERROR_WORKSPACE: InvalidParams,
    Status.ERROR_CUDA: CudaError,
}


def bind(handle: ctypes.CDLL) -> None:
    """Give every entry its types, then compare versions and struct sizes.

    Raises
    ------
    NativeUnavailable
        An entry is missing, or library and mirror were made from different versions of the header.
    """
    for name, (result, arguments) in SIGNATURES.items():
        try:
            entry = getattr(handle, name)
        except AttributeError:
            raise NativeUnavailable(f"{handle._name} has no entry {name}") from None
        entry.restype, entry.argtypes = result, arguments
    if (version := handle.irm_abi_version()) != ABI_VERSION:
        raise NativeUnavailable(
            f"{handle._name} has ABI version {version}, this package needs {ABI_VERSION}"
        )
    for number, struct in STRUCTS.items():
        if (size := handle.irm_struct_size(number)) != ctypes.sizeof(struct):
            raise NativeUnavailable(
                f"{handle._name} has {size} bytes in {struct.__name__}, this package "
                f"{ctypes.sizeof(struct)}: they are of different builds"
            )


def check(handle: ctypes.CDLL, status: int, action: str) -> None:
    """Raise the typed error for a status that is not OK, with the library's own text."""
    if status != Status.OK:
        text = handle.irm_last_error().decode(errors="replace")
        raise _ERRORS.get(status, CudaError)(f"{action}: {text}")
