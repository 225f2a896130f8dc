"""CUDA sources under cuda/src -> one shared library with a C ABI, and what its kernels cost.

Knows compilers and flags; must not know torch, Python's C API or what a kernel computes. Every
``.cu`` below ``src`` is compiled on its own and linked, so a new kernel folder needs no edit here.

    python cuda/build.py                 # into python/irminsul/_native/cu13/
    python cuda/build.py --resources     # also print registers, shared memory and spills
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from resources import Resources, parse_resources, print_resources

ROOT = Path(__file__).resolve().parent
REPOSITORY = ROOT.parent
LIBRARY = REPOSITORY / "python/irminsul/_native/cu13/libirminsul_cuda.so"
OBJECTS = REPOSITORY / "build/cuda"

TOOLCHAIN = tuple(
    line for line in (ROOT / "toolchain.txt").read_text().splitlines() if line[:1].isalpha()
)
"""Wheels that hold everything this build needs besides a C++ compiler."""

COMPILE_FLAGS = (
    "-std=c++17",
    "-O3",
    "-gencode=arch=compute_90a,code=sm_90a",
    "-lineinfo",
    "--expt-relaxed-constexpr",
    "--ptxas-options=-v,--warn-on-spills,--warn-on-local-memory-usage",
    "-Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra",
    "-Werror=all-warnings",
)
# Only irm_* leaves the library, whatever a header of CUTLASS or of the runtime marks as visible.
EXPORTS = "{ global: irm_*; local: *; };\n"


class BuildError(Exception):
    """The library cannot be built here; the message says why and what to do."""


class ToolchainError(BuildError):
    """There is no compiler here that fits, or something that it needs is missing."""


@dataclass(frozen=True)
class Toolchain:
    """Where nvcc, its libraries and CUTLASS's headers are."""

    nvcc: Path
    libraries: Path
    cutlass: Path | None

    def version(self) -> str:
        """Return CUDA's version, as "13.0"."""
        text = subprocess.run(
            [self.nvcc, "--version"], capture_output=True, text=True, check=True
        ).stdout
        found = re.search(r"release (\d+\.\d+)", text)
        return found.group(1) if found else "unknown"

    def headers(self) -> Path:
        """Return the folder of CUTLASS's headers.

        Raises
        ------
        ToolchainError
            This cannot compile the library: no headers, or another version of CUDA.
        """
        if self.cutlass is None:
            raise ToolchainError(
                "CUTLASS headers not found: pip install nvidia-cutlass==4.2.0.0, "
                "or set CUTLASS_HOME"
            )
        if (version := self.version()) != "13.0":
            raise ToolchainError(
                f"{self.nvcc} is CUDA {version}; 13.0 is needed. It can be installed with: "
                f"pip install {' '.join(TOOLCHAIN)}"
            )
        return self.cutlass


def find_toolchain(nvcc: Path | None = None) -> Toolchain | None:
    """Return the first toolchain: the one asked for, this Python's wheels, CUDA_HOME, the PATH."""
    home = os.environ.get("CUDA_HOME")
    candidates = [
        nvcc,
        *(folder / "nvidia/cu13/bin/nvcc" for folder in _wheel_folders()),
        Path(home) / "bin/nvcc" if home else None,
        Path(found) if (found := shutil.which("nvcc")) else None,
    ]
    for candidate in candidates:
        if candidate is not None and candidate.is_file():
            return _toolchain_of(candidate.resolve())
    return None


def _wheel_folders() -> list[Path]:
    """Return where wheels may be; an isolated build has them on the path, not in site-packages."""
    return [Path(entry) for entry in sys.path if entry.endswith("site-packages")]


def _toolchain_of(nvcc: Path) -> Toolchain:
    home = nvcc.parent.parent
    folders = [home / "lib64", home / "lib", home / "targets/x86_64-linux/lib"]
    libraries = [folder for folder in folders if (folder / "libcudart_static.a").is_file()]
    if not libraries:
        raise ToolchainError(
            f"{nvcc}: no libcudart_static.a beside it; install nvidia-cuda-runtime"
        )
    around = [*nvcc.parents, *_wheel_folders()]
    headers = [folder / "cutlass_library/source/include" for folder in around]
    cutlass = os.environ.get("CUTLASS_HOME")
    if cutlass:
        headers.insert(0, Path(cutlass) / "include")
    found = next((folder for folder in headers if (folder / "cute/tensor.hpp").is_file()), None)
    return Toolchain(nvcc, libraries[0], found)


def build(
    toolchain: Toolchain,
    out: Path = LIBRARY,
    *,
    defines: tuple[str, ...] = (),
    jobs: int = 2,
    allow_spills: bool = False,
) -> list[Resources]:
    """Compile what changed, link, and replace ``out`` in one step.

    Raises
    ------
    ToolchainError
        Wrong CUDA version, or headers are missing.
    BuildError
        A compiler error, or a kernel that spills registers or uses local memory (unless
        ``allow_spills``).
    """
    cutlass = toolchain.headers()
    flags = [flag for flag in COMPILE_FLAGS if not (allow_spills and "Werror" in flag)]
    flags += ["-Iinclude", "-Isrc"]  # relative to cuda/, where the compiler runs
    # Headers of others: their warnings are not ours to turn into errors.
    flags += [
        "-isystem",
        os.path.relpath(cutlass, ROOT),
        *(f"-D{define}" for define in defines),
    ]
    sources = sorted((ROOT / "src").rglob("*.cu"))
    with ThreadPoolExecutor(jobs) as pool:
        compiled = list(pool.map(lambda source: _compile(toolchain, source, flags), sources))
    resources = [kernel for _, kernels in compiled for kernel in kernels]
    _check_resources(resources, allow_spills)
    _link(toolchain, [item for item, _ in compiled], out)
    return resources


def _compile(toolchain: Toolchain, source: Path, flags: list[str]) -> tuple[Path, list[Resources]]:
    """Compile one file unless its object is of the same sources, headers and flags."""
    name = source.relative_to(ROOT / "src").with_suffix("")
    key = _fingerprint(source, [toolchain.version(), *flags])
    target = OBJECTS / f"{str(name).replace(os.sep, '-')}-{key}.o"
    report = target.with_suffix(".ptxas")
    if not (target.is_file() and report.is_file()):
        OBJECTS.mkdir(parents=True, exist_ok=True)
        for old in OBJECTS.glob(f"{str(name).replace(os.sep, '-')}-" + "?" * 16 + ".*"):
            old.unlink()
        partial = target.with_suffix(f".{os.getpid()}.o")
        result = subprocess.run(
            [toolchain.nvcc, *flags, "-c", "-o", partial, source.relative_to(ROOT)],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        if result.returncode != 0:
            raise BuildError(f"{source}:\n{result.stdout}{result.stderr}")
        report.write_text(result.stdout + result.stderr)
        partial.replace(target)
    return target, parse_resources(str(name), report.read_text())


def _fingerprint(source: Path, settings: list[str]) -> str:
    # A kernel folder uses its own headers, the common ones, and those of the folders it names.
    folders = [ROOT / "include", ROOT / "src/common", source.parent, *_included(source.parent)]
    headers = {
        path
        for folder in folders
        for path in folder.rglob("*")
        if path.suffix in {".h", ".cuh", ".hpp"}
    }
    digest = hashlib.sha256("\0".join(settings).encode())
    for path in [source, *sorted(headers)]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _included(folder: Path) -> set[Path]:
    """Return the folders of ``src`` that files directly in ``folder`` include headers of."""
    texts = [path.read_text() for path in folder.glob("*.*") if path.is_file()]
    names = {name for text in texts for name in re.findall(r'#include "(\w+)/', text)}
    return {found for name in names if (found := ROOT / "src" / name).is_dir()}


def _check_resources(resources: list[Resources], allow_spills: bool) -> None:
    wasteful = [kernel for kernel in resources if kernel.spill_bytes or kernel.stack_bytes]
    if wasteful and not allow_spills:
        lines = [
            f"  {kernel.kernel}: {kernel.stack_bytes} bytes of stack, "
            f"{kernel.spill_bytes} bytes spilled"
            for kernel in wasteful
        ]
        raise BuildError("kernels that use local memory:\n" + "\n".join(lines))


def _link(toolchain: Toolchain, objects: list[Path], out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    exports = OBJECTS / "exports.map"
    exports.write_text(EXPORTS)
    partial = out.with_suffix(f".{os.getpid()}.so")
    # The host's linker: there is no device code to link, and nvcc would leave its paths behind.
    command = [os.environ.get("CXX", "c++"), "-shared", *objects, "-o", partial]
    command += [toolchain.libraries / "libcudart_static.a", "-ldl", "-lrt", "-lpthread"]
    command += [f"-Wl,--version-script={exports}", "-Wl,-soname,libirminsul_cuda.so"]
    command += ["-Wl,--no-undefined,--as-needed,-z,now,-z,relro,--strip-all"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise BuildError(f"linking {out}:\n{result.stdout}{result.stderr}")
    # Another process may have the old file mapped; a rename leaves its copy alone.
    partial.replace(out)


def main() -> int:
    """Build from the command line; exit code 1 when there is no library at the end."""
    parser = argparse.ArgumentParser(description="Build irminsul's CUDA library.")
    parser.add_argument("--nvcc", type=Path, help="compiler to use instead of the first one found")
    parser.add_argument("--out", type=Path, default=LIBRARY, help="library to write")
    parser.add_argument("--define", action="append", default=[], help="NAME or NAME=VALUE")
    parser.add_argument("--jobs", type=int, default=2, help="compilers at a time")
    parser.add_argument("--resources", action="store_true", help="print what kernels use")
    parser.add_argument("--json", type=Path, help="write what kernels use to this file")
    parser.add_argument("--allow-spills", action="store_true", help="experiments only")
    arguments = parser.parse_args()
    try:
        toolchain = find_toolchain(arguments.nvcc)
        if toolchain is None:
            raise ToolchainError(f"no nvcc found; pip install {' '.join(TOOLCHAIN)}")
        resources = build(
            toolchain,
            arguments.out.resolve(),
            defines=tuple(arguments.define),
            jobs=arguments.jobs,
            allow_spills=arguments.allow_spills,
        )
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if arguments.resources:
        print_resources(resources)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(item) for item in resources], indent=1))
    print(f"{arguments.out} ({arguments.out.stat().st_size:,} bytes)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
