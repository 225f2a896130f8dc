"""An installation -> a list of checks: versions, the engine's hooks, native parts, GPUs, tiers.

Must not change anything, and must run with nothing but numpy installed: every other part may be
missing, which is a finding only where something that is there cannot work.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Literal

import irminsul
from irminsul import native
from irminsul.errors import IrminsulError
from irminsul.integrations.sglang import compat

__all__ = ["Check", "add_arguments", "examine", "run"]

Status = Literal["ok", "absent", "mismatch"]

_DISTRIBUTION = "irminsul-kv"
_PACKAGES = ("numpy", "torch", "sglang", "transformers")
_PLUGINS = "sglang.srt.plugins"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding.

    Attributes
    ----------
    group
        ``versions``, ``sglang``, ``native``, ``gpu`` or ``tiers``.
    name
        What was looked at.
    status
        ``ok``; ``absent``, an optional part that is not there; ``mismatch``, a part that is there
        and cannot work.
    detail
        Version, or what is wrong and what to do.
    """

    group: str
    name: str
    status: Status
    detail: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``irminsul doctor``: none of its own."""


def run(arguments: argparse.Namespace) -> int:
    """Print all checks; return 1 when one is a mismatch."""
    checks = list(examine())
    mismatches = sum(check.status == "mismatch" for check in checks)
    if arguments.json:
        print(json.dumps({"ok": not mismatches, "checks": [asdict(c) for c in checks]}, indent=2))
    else:
        _print(checks)
        print(f"\n{mismatches} mismatches" if mismatches else "\nno mismatch")
    return 1 if mismatches else 0


def examine() -> Iterator[Check]:
    """Yield every check, in the order in which they are shown."""
    yield from _versions()
    yield from _sglang()
    yield from _native()
    yield from _gpus()
    yield from _tiers()


def _print(checks: list[Check]) -> None:
    for number, (group, members) in enumerate(groupby(checks, key=lambda check: check.group)):
        shown = list(members)
        width = max(len(check.name) for check in shown)
        print(("\n" if number else "") + group)
        for check in shown:
            print(f"  {check.status:<9} {check.name:<{width}}  {check.detail}".rstrip())


def _versions() -> Iterator[Check]:
    yield Check("versions", "irminsul", "ok", irminsul.__version__)
    yield Check("versions", "python", "ok", platform.python_version())
    ranges = _supported_ranges()
    for name in _PACKAGES:
        yield _version_check(name, ranges.get(name, ""))


def _version_check(name: str, supported: str) -> Check:
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Check("versions", name, "absent", f"supported: {supported or 'any'}")
    if _in_range(found, supported):
        return Check("versions", name, "ok", found)
    return Check("versions", name, "mismatch", f"{found} is installed, supported: {supported}")


def _supported_ranges() -> dict[str, str]:
    """Return each requirement's version range, as the package declares it."""
    try:
        declared = importlib.metadata.requires(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:  # a source tree that was never installed
        return {}
    matches = (re.match(r"([A-Za-z0-9._-]+)\s*\(?([^;)]*)", line) for line in declared)
    return {m[1]: m[2].replace(" ", "") for m in matches if m and m[2].strip()}


def _in_range(found: str, supported: str) -> bool:
    """Tell whether version `found` lies in a range such as ``>=0.5.16,<0.5.24``.

    Only the two operators that the package uses, on release numbers: ``packaging`` may be missing.
    """
    comparisons: dict[str, Callable[[Any, Any], bool]] = {
        ">=": lambda a, b: a >= b,
        "<": lambda a, b: a < b,
    }
    for operator, bound in re.findall(r"(>=|<)([0-9.]+)", supported):
        if not comparisons[operator](_release(found), _release(bound)):
            return False
    return True


def _release(version: str) -> tuple[int, ...]:
    numbers = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    parts = tuple(int(part) for part in numbers[0].split(".")) if numbers else ()
    while parts and parts[-1] == 0:  # 2.9 and 2.9.0 are one version
        parts = parts[:-1]
    return parts


def _sglang() -> Iterator[Check]:
    if importlib.util.find_spec("sglang") is None:
        yield Check("sglang", "hooks", "absent", "SGLang is not installed")
        return
    print("irminsul: importing SGLang, this takes a while", file=sys.stderr)
    yield _entry_point()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SGLang's remarks on the device, no findings of ours
        rows, optional = compat.rows(), compat.optional_rows()
    for row in (*rows, *optional):
        missing: Status = "absent" if row in optional else "mismatch"
        yield Check("sglang", row.target, "ok" if row.resolved else missing, row.detail)


def _entry_point() -> Check:
    name = "entry point"
    found = [e for e in importlib.metadata.entry_points(group=_PLUGINS) if e.name == "irminsul"]
    if found:
        return Check("sglang", name, "ok", f"{_PLUGINS}: {found[0].value}")
    return Check(
        "sglang",
        name,
        "mismatch",
        f"SGLang will not find the plugin: install the package, so that {_PLUGINS} lists it",
    )


def _native() -> Iterator[Check]:
    core = irminsul._core
    yield Check("native", "extension module", "ok", f"{core.__version__}, {core.__file__}")
    yield _cuda_library()


def _cuda_library() -> Check:
    name, reason = "CUDA library", native.unavailable_reason()
    if reason is None:
        return Check("native", name, "ok", f"{native.build_info()}, {native.library_path()}")
    # Left out or switched off is a choice; there and not loadable, or named and not there, is not.
    switched_off = os.environ.get(native.DISABLE_VARIABLE, "") not in ("", "0")
    wanted = native.library_path().is_file() or bool(os.environ.get(native.LIBRARY_VARIABLE))
    return Check("native", name, "mismatch" if wanted and not switched_off else "absent", reason)


def _gpus() -> Iterator[Check]:
    gpus = list(_nvidia_gpus())
    if not gpus:
        yield Check("gpu", "NVIDIA", "absent", "no GPU; the library runs on the CPU")
    for index, detail in enumerate(gpus):
        if native.is_available() and not native.supports_device(index):
            detail += "; the CUDA library has no kernels for it, torch does their work"
        yield Check("gpu", f"NVIDIA {index}", "ok", detail)


def _tiers() -> Iterator[Check]:
    from irminsul.integrations.sglang import settings
    from irminsul.tiers import MooncakeSettings
    from irminsul.tiers.examine import examine_store

    try:
        options = settings.load()
        where = MooncakeSettings(**settings.store_fields(options)) if options.pool_master else None
    except IrminsulError as error:
        yield Check("tiers", "settings", "mismatch", str(error))
        return
    for finding in examine_store(where):
        yield Check("tiers", finding.name, finding.status, finding.detail)


def _nvidia_gpus() -> Iterator[str]:
    """Yield name and compute capability of each GPU, asked of the driver (torch may be missing)."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return
    for index in range(count.value):
        name = ctypes.create_string_buffer(128)
        major, minor = ctypes.c_int(), ctypes.c_int()
        driver.cuDeviceGetName(name, len(name), index)
        # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
        driver.cuDeviceGetAttribute(ctypes.byref(major), 75, index)
        driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, index)
        yield f"{name.value.decode()}, compute capability {major.value}.{minor.value}"
