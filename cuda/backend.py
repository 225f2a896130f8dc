"""PEP 517 requests -> the CUDA library where it can be built, then whatever maturin makes of them.

Knows cuda/build.py and maturin; must not know what is in the package. How much it insists is a
config setting of pip or build:

    pip install .                                     # with the library if a fitting nvcc is there,
                                                      # or an NVIDIA driver: then nvcc is fetched
    pip install . --config-settings cuda=wheels       # fetch nvcc from the package index first
    pip install . --config-settings cuda=require      # fail when the library cannot be built
    pip install . --config-settings cuda=off          # without it, whatever is installed
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import maturin
from maturin import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

sys.path.insert(0, str(Path(__file__).resolve().parent))
import build as cuda_build

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

Settings = Mapping[str, Any] | None
MODES = ("auto", "wheels", "require", "off")

DRIVER = Path("/proc/driver/nvidia/version")
"""Is there where an NVIDIA driver runs, so where the library will be wanted."""


def _mode(settings: Settings) -> str:
    mode = str((settings or {}).get("cuda", "auto"))
    if mode not in MODES:
        raise SystemExit(f"config setting cuda={mode}: allowed are {', '.join(MODES)}")
    return mode


def _maturin_settings(settings: Settings) -> dict[str, Any] | None:
    return {key: value for key, value in settings.items() if key != "cuda"} if settings else None


def _say(text: str) -> None:
    print(f"irminsul: {text}", file=sys.stderr)


def _build_library(settings: Settings) -> None:
    """Build the library, or say why the package comes without it."""
    mode = _mode(settings)
    if mode == "off":
        cuda_build.LIBRARY.unlink(missing_ok=True)
        return _say("the CUDA library was left out as asked (cuda=off)")
    try:
        toolchain = cuda_build.find_toolchain()
        if toolchain is None:
            raise cuda_build.ToolchainError("no nvcc in this environment, CUDA_HOME or the PATH")
        cuda_build.build(toolchain)
    except cuda_build.ToolchainError as error:
        if mode != "auto":
            raise
        if cuda_build.LIBRARY.is_file():
            return _say(f"packaging the CUDA library that was built before ({error})")
        return _say(
            f"WITHOUT the CUDA library: {error}. Everything works on the CPU; for GPU kernels "
            "install with --config-settings cuda=wheels. `irminsul doctor` tells what is there."
        )
    return _say(f"built {cuda_build.LIBRARY.name}")


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Return maturin's needs, and the CUDA compiler's wheels when they were asked for."""
    needs = list(maturin.get_requires_for_build_wheel(_maturin_settings(config_settings)))
    return needs + list(cuda_build.TOOLCHAIN if _fetches(_mode(config_settings)) else ())


def _fetches(mode: str) -> bool:
    """Return whether the compiler comes from the package index."""
    if mode != "auto" or not DRIVER.exists():
        return mode == "wheels"
    try:
        toolchain = cuda_build.find_toolchain()
        if toolchain is not None:
            toolchain.headers()
    except cuda_build.ToolchainError:
        return True
    return toolchain is None


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """Return the same for an editable installation."""
    return get_requires_for_build_wheel(config_settings)


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build the library, then the wheel round it."""
    _build_library(config_settings)
    name: str = maturin.build_wheel(
        wheel_directory, _maturin_settings(config_settings), metadata_directory
    )
    return name


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build the library into the source tree, then an editable wheel."""
    _build_library(config_settings)
    name: str = maturin.build_editable(
        wheel_directory, _maturin_settings(config_settings), metadata_directory
    )
    return name
