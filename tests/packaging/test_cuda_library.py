"""The CUDA library runs wherever the wheel says it does."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import elf
import pytest
from irminsul.native import abi, loader

LIBRARY = loader.library_path()
REPOSITORY = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.skipif(not LIBRARY.is_file(), reason="the CUDA library is not built (make cuda)"),
    pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump (binutils) is missing"),
]

ALLOWED = {
    "libc.so.6",
    "libm.so.6",
    "libstdc++.so.6",
    "libgcc_s.so.1",
    "libdl.so.2",
    "librt.so.1",
    "libpthread.so.0",
    "ld-linux-x86-64.so.2",
}
"""What manylinux takes for granted. No CUDA library: the runtime is inside, the driver optional."""


def tag() -> tuple[int, ...]:
    """glibc of the tag that `make wheel` puts on the wheel."""
    found = re.search(r"^WHEEL_TAG \?= manylinux_(\d+)_(\d+)$", makefile(), re.MULTILINE)
    assert found
    return tuple(int(part) for part in found.groups())


def makefile() -> str:
    return (REPOSITORY / "Makefile").read_text()


def test_needs_no_library_beyond_the_system_s() -> None:
    assert elf.needed(LIBRARY) <= ALLOWED
    assert elf.run_paths(LIBRARY) == []


def test_runs_on_the_glibc_of_the_tag() -> None:
    assert elf.highest(LIBRARY, "GLIBC") <= tag()


def test_runs_on_the_libstdcxx_of_the_tag() -> None:
    # manylinux_2_34 is AlmaLinux 9: GCC 11's libstdc++ and the ABI that came with it.
    assert elf.highest(LIBRARY, "GLIBCXX") <= (3, 4, 29)
    assert elf.highest(LIBRARY, "CXXABI") <= (1, 3, 13)


def test_exports_the_header_s_entries_and_nothing_else() -> None:
    header = (REPOSITORY / "cuda/include/irminsul/abi.h").read_text()
    declared = set(re.findall(r"^IRM_API [\w* ]*?\b(irm_\w+)\(", header, re.MULTILINE))
    assert elf.exported(LIBRARY) == declared
    assert declared == set(abi.SIGNATURES)


def test_header_is_c99() -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    command = [compiler, "-std=c99", "-pedantic-errors", "-Wall", "-Wextra", "-Werror"]
    include = REPOSITORY / "cuda/include"
    source = '#include "irminsul/abi.h"\nint main(void) { return IRM_OK; }\n'
    run = subprocess.run(
        [*command, f"-I{include}", "-x", "c", "-fsyntax-only", "-"],
        input=source,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr


def test_holds_code_for_hopper() -> None:
    assert b"sm_90a" in LIBRARY.read_bytes()


def test_loads_where_there_is_no_gpu() -> None:
    code = "from irminsul import native; print(native.build_info(), native.supports_device(0))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"CUDA_VISIBLE_DEVICES": "", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.fullmatch(r"CUDA 13\.\d+, sm_90a False\n", run.stdout)
