"""The CUDA library of the package: found, loaded and checked on first use.

Knows ctypes and the C ABI; must not import torch or an engine, so that a machine without either can
ask what is there.
"""

from irminsul.native.loader import (
    DISABLE_VARIABLE,
    LIBRARY_VARIABLE,
    build_info,
    is_available,
    library,
    library_path,
    supports_device,
    unavailable_reason,
)

__all__ = [
    "DISABLE_VARIABLE",
    "LIBRARY_VARIABLE",
    "build_info",
    "is_available",
    "library",
    "library_path",
    "supports_device",
    "unavailable_reason",
]
