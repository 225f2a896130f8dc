"""cuda/include/irminsul/abi.h -> the same codes and signatures for ctypes; structs in `structs`.

Knows only that header. The loader compares version and struct sizes with the library's before
anything is called, so a mirror that lags behind is an error and never a wrong read.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int32, c_int64, c_uint32, c_uint64
from enum import IntEnum
from typing import Any

from irminsul.errors import (
    CudaError,
    InvalidParams,
    IrminsulError,
    NativeUnavailable,
    Unsupported,
)
from irminsul.native.structs import (
    ABI_VERSION,
    STRUCTS,
    MlaAttentionParams,
    MlaPlanParams,
    MlaTile,
    MlaTilesParams,
    MlaTurnParams,
    MlaWidenParams,
    Params,
    RelocateParams,
    RelocateReport,
    SpanRun,
    SpansParams,
)

__all__ = [
    "ABI_VERSION",
    "SIGNATURES",
    "STRUCTS",
    "MlaAttentionParams",
    "MlaPlanParams",
    "MlaTile",
    "MlaTilesParams",
    "MlaTurnParams",
    "MlaWidenParams",
    "Params",
    "RelocateFault",
    "RelocateParams",
    "RelocateReport",
    "RowFormat",
    "SpanRun",
    "SpansParams",
    "Status",
    "bind",
    "check",
]


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
