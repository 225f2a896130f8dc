"""An ELF file -> what it asks of the machine: libraries, symbol versions, exported names."""

import re
import subprocess
from pathlib import Path


def needed(library: Path) -> set[str]:
    """Names of the libraries that the loader must find."""
    text = _objdump("-p", library)
    return set(re.findall(r"^\s*NEEDED\s+(\S+)", text, re.MULTILINE))


def run_paths(library: Path) -> list[str]:
    """RPATH and RUNPATH entries; paths of the build machine have no place in a wheel."""
    return re.findall(r"^\s*R(?:UN)?PATH\s+(\S+)", _objdump("-p", library), re.MULTILINE)


def highest(library: Path, family: str) -> tuple[int, ...]:
    """Highest version of a family of symbols that it needs, as (2, 34) for GLIBC_2.34."""
    text = _objdump("-T", library)
    found = re.findall(rf"\({family}_(\d+(?:\.\d+)*)\)|\s{family}_(\d+(?:\.\d+)*)", text)
    return max(tuple(int(part) for part in (a or b).split(".")) for a, b in found)


def exported(library: Path) -> set[str]:
    """Names that it defines for others."""
    lines = [line.split() for line in _objdump("-T", library).splitlines()]
    return {words[-1] for words in lines if len(words) > 4 and "*UND*" not in words}


def _objdump(option: str, library: Path) -> str:
    run = subprocess.run(["objdump", option, library], capture_output=True, text=True, check=True)
    return run.stdout
