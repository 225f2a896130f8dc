"""A server's command -> its process, up once it answers and gone when it is no longer used.

Must not know what is served or asked.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from irminsul.errors import IrminsulError
from irminsul.live.client import Client


@contextlib.contextmanager
def running(
    command: Sequence[str], address: str, log: Path, seconds: float, **more: Any
) -> Iterator[None]:
    """Run `command`, which writes to `log`, until it is left; `more` is for `subprocess.Popen`.

    Raises
    ------
    RuntimeError
        It ended, or nothing answered at `address` for `seconds`; with the end of its log.
    """
    with log.open("wb") as sink:
        # A group of its own, so that ending it reaches the schedulers.
        process = subprocess.Popen(
            command, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True, **more
        )
    try:
        _wait(process, address, log, seconds)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(process: subprocess.Popen[bytes], address: str, log: Path, seconds: float) -> None:
    end, said = time.monotonic() + seconds, f"was not up after {seconds:.0f} s"
    while time.monotonic() < end:
        if process.poll() is not None:
            said = f"ended with {process.returncode}"
            break
        # It answers /health before it serves; what it is, its scheduler is asked for.
        with contextlib.suppress(IrminsulError, OSError):
            Client(address, api_key="", timeout_s=60.0).info()
            return
        time.sleep(0.5)
    raise RuntimeError(f"the server {said}:\n{log.read_text(errors='replace')[-6000:]}")
