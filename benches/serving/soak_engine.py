"""A device, an attention backend and a page size -> the small engine of a soak, and its name.

Must not know the load.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import psutil
from common import GPU_HEADS, Server

VOCABULARY = 512

_RIVAL = """
import os, torch
one = torch.zeros(8192, 8192, dtype=torch.bfloat16, device="cuda")
other, parent = torch.empty_like(one), os.getppid()
while os.getppid() == parent:
    for _ in range(16):
        torch.mm(one, one, out=other)
    torch.cuda.synchronize()
"""


def engine(device: str, backend: str, page: int) -> tuple[str, dict[str, Any]]:
    """Return a folder with a small random model and the arguments that serve it on `device`.

    `backend` and `page` are for GPUs: the attention backend, and tokens in a page of the pool.
    """
    from irminsul.demo import cpu_host
    from irminsul.demo.model import TinyModel

    folder = tempfile.mkdtemp(prefix="irminsul-soak-")
    common = {"load_format": "auto", "chunked_prefill_size": 256, "max_running_requests": 16}
    if device == "cpu":
        os.environ.update(cpu_host.environment())
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        arguments = cpu_host.engine_arguments(TinyModel().write(folder), context_length=4096)
        return str(arguments.pop("model_path")), {**arguments, **common, "max_total_tokens": 1600}
    TinyModel(layers=4, **GPU_HEADS).write(folder)
    os.environ["IRMINSUL_TEST_FORM"] = "1"
    os.environ["IRMINSUL_TEST_HOLES"] = os.environ["IRMINSUL_TEST_NO_TREE_MATCH"] = "holes"
    return folder, {
        **common,
        "attention_backend": backend,
        "page_size": page,
        "mem_fraction_static": 0.85,  # of a GPU that others fill too; the pool's size is given
        "chunked_prefill_size": 1024,
        "max_total_tokens": 24_000,
        "schedule_conservativeness": 0.3,
    }


def memory(server: Server) -> float:
    """Return the resident memory of the engine's processes, in MiB."""
    family = psutil.Process().children(recursive=True)
    return sum(process.memory_info().rss for process in family) / 2**20


def described(arguments: argparse.Namespace) -> str:
    """Return what serves, as the case of its rows."""
    if arguments.device == "cpu":
        return f"{arguments.backend}, CPU"
    more = json.loads(arguments.engine)
    parts = [arguments.backend, arguments.attention_backend]
    parts += [f"page {arguments.page_size}"] * (arguments.page_size > 1)
    parts += ["no plan guard"] * (os.environ.get("IRMINSUL_PLAN_GUARD") == "0")
    parts += [f"{arguments.rivals} on the same GPU multiply matrices"] * bool(arguments.rivals)
    parts += ["no overlap"] * bool(more.get("disable_overlap_schedule"))
    return ", ".join(parts + ["plans wait"] * (arguments.plans == "wait"))


@contextlib.contextmanager
def rivals(count: int) -> Iterator[None]:
    """Let `count` processes multiply matrices on the engine's GPU meanwhile."""
    running = [subprocess.Popen([sys.executable, "-c", _RIVAL]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()
