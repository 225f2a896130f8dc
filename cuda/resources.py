"""What ``ptxas -v`` printed -> registers, shared memory and spills of each kernel.

Knows that text; must not know how the compiler was called.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class Resources:
    """What the compiler says about one kernel."""

    source: str
    kernel: str
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int


def parse_resources(source: str, report: str) -> list[Resources]:
    """Read what ``ptxas -v`` printed."""
    kernels = []
    for part in report.split("Compiling entry function '")[1:]:

        def number(pattern: str, text: str = part) -> int:
            found = re.search(pattern, text)
            return int(found.group(1)) if found else 0

        spilled = number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads")
        kernels.append(
            Resources(
                source=source,
                kernel=_demangle(part.split("'", 1)[0]),
                registers=number(r"Used (\d+) registers"),
                shared_bytes=number(r"(\d+) bytes smem"),
                stack_bytes=number(r"(\d+) bytes stack frame"),
                spill_bytes=spilled,
            )
        )
    return kernels


def _demangle(symbol: str) -> str:
    tool = shutil.which("c++filt")
    if tool is None:
        return symbol
    name = subprocess.run([tool, symbol], capture_output=True, text=True, check=True).stdout.strip()
    return re.sub(r"^void |\(.*\)$", "", name).replace("irminsul::", "")


def print_resources(resources: list[Resources]) -> None:
    """Print one line a kernel."""
    print(f"{'kernel':<60}{'registers':>10}{'smem':>8}{'stack':>7}{'spill':>7}")
    for kernel in resources:
        print(
            f"{kernel.kernel:<60}{kernel.registers:>10}{kernel.shared_bytes:>8}"
            f"{kernel.stack_bytes:>7}{kernel.spill_bytes:>7}"
        )
