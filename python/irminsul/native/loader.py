"""A file name -> the loaded CUDA library, or the reason why there is none.

Knows where the library may be; must not know what its entries do.
"""

from __future__ import annotations

import ctypes
import os
import threading
from functools import cache
from pathlib import Path

from irminsul.errors import NativeUnavailable
from irminsul.native import abi

LIBRARY_VARIABLE = "IRMINSUL_CUDA_LIB"
"""Environment variable: path of the library to load instead of the packaged one."""
DISABLE_VARIABLE = "IRMINSUL_DISABLE_CUDA"
"""Environment variable: ``1`` leaves the library unloaded; plain torch does its work."""

_PACKAGED = Path(__file__).resolve().parent.parent / "_native/cu13/libirminsul_cuda.so"
_lock = threading.Lock()
_outcome: ctypes.CDLL | NativeUnavailable | None = None


def library_path() -> Path:
    """Return the file that `library` loads: ``IRMINSUL_CUDA_LIB``, else the packaged one."""
    override = os.environ.get(LIBRARY_VARIABLE)
    return Path(override) if override else _PACKAGED


def library() -> ctypes.CDLL:
    """Load the library once per process and check that it fits this package.

    Returns
    -------
    ctypes.CDLL
        With typed entries, see `irminsul.native.abi`. Needs no GPU to load.

    Raises
    ------
    NativeUnavailable
        Disabled, not there, not loadable here, or of another build; the same answer every time.
    """
    global _outcome
    if _outcome is None:
        with _lock:
            if _outcome is None:
                try:
                    _outcome = _load()
                except NativeUnavailable as error:
                    _outcome = error
    if isinstance(_outcome, NativeUnavailable):
        # A fresh exception: the kept one would grow its traceback with every raise.
        raise NativeUnavailable(str(_outcome))
    return _outcome


def _load() -> ctypes.CDLL:
    disabled = os.environ.get(DISABLE_VARIABLE, "")
    if disabled not in ("", "0"):
        raise NativeUnavailable(f"the CUDA library is switched off: {DISABLE_VARIABLE}={disabled}")
    path = library_path()
    if not path.is_file():
        raise NativeUnavailable(
            f"there is no CUDA library at {path}: this installation was built without nvcc; "
            f"build it with cuda/build.py, or point {LIBRARY_VARIABLE} at one"
        )
    try:
        handle = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeUnavailable(f"the CUDA library does not load: {error}") from error
    abi.bind(handle)
    return handle


def is_available() -> bool:
    """Return whether `library` succeeds."""
    return unavailable_reason() is None


def unavailable_reason() -> str | None:
    """Return why `library` fails, or None when it does not."""
    try:
        library()
    except NativeUnavailable as error:
        return str(error)
    return None


def build_info() -> str:
    """Return what the library was built with, as "CUDA 13.0, sm_90a"."""
    text: bytes = library().irm_build_info()
    return text.decode()


@cache
def supports_device(index: int) -> bool:
    """Return whether the library is there and its kernels run on GPU ``index``."""
    return is_available() and library().irm_check_device(index) == abi.Status.OK
