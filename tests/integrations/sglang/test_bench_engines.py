"""A bench's engines -> ports of their own, and what a sanitizer's report of one says."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "benches" / "serving"))
import common
import sanitized

HEAD = "========= COMPUTE-SANITIZER\n"
READ = """\
========= Invalid __global__ read of size 8 bytes
=========     at irminsul::spans::write_kernel(irminsul::spans::Job)+0x110 in write.cuh:28
=========     Access to {address} is out of bounds
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame:  [0x142fd] in libirminsul_cuda.so
=========
"""
FAULT, OURS = READ.format(address="0x500000000108"), READ.format(address="0x7fb5c0000000")


def total(count: int) -> str:
    return (
        f"========= ERROR SUMMARY: {count} errors\n"
        "========= ERROR SUMMARY: 126 errors were not printed. Use --print-limit option\n"
    )


@pytest.mark.parametrize(
    ("report", "found"),
    [
        (HEAD, (0, 0)),
        (HEAD + FAULT + FAULT + total(64), (0, 64)),
        (HEAD + OURS + FAULT + OURS + total(130), (1, 129)),
        (HEAD + OURS + total(127), (127, 0)),
        (HEAD + OURS + OURS, (2, 0)),  # the tool was ended before it counted
        (HEAD + "========= ERROR SUMMARY: 0 errors\n", (0, 0)),
    ],
)
def test_errors_are_those_before_the_fault(report: str, found: tuple[int, int]) -> None:
    assert sanitized.errors(report) == found
    assert sanitized.errors(report.replace("=========\n", "========= \n")) == found


def test_what_is_spawned_runs_under_the_tool(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text('#!/bin/bash\necho "watched $@"\n')
    tool.chmod(0o755)
    python = sanitized.watched(str(tool), tmp_path)

    def said(*arguments: str) -> str:
        return subprocess.run([python, *arguments], capture_output=True, text=True).stdout

    assert said("-c", "print('plain')") == "plain\n"
    spawned = said("-c", "from multiprocessing.spawn import spawn_main; spawn_main()")
    assert spawned.startswith("watched --tool memcheck")
    assert f"--log-file {tmp_path}/report-" in spawned


@pytest.mark.parametrize("beside", [0, 1, 234, 238])
def test_an_engine_gets_no_port_beside_which_another_one_listens(beside: int) -> None:
    first = common.free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first + beside))
        taken.listen()
        other = common.free_port()
    assert other > first
    assert common.free_port() == first
