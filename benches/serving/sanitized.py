"""A short serve under compute-sanitizer -> what it says of irminsul's kernels, and that it would.

Each process of an engine runs under a tool of its own, which watches kernels with irminsul in their
name. The scheduler answers prompts alone, together, over moved and over lent text, in CUDA graphs
and aborted. Then it ends by itself, after one kernel that reads where no memory is, on purpose: a
report without that fault would prove nothing. Also the SGLang plugin that counts in the scheduler.

    python benches/serving/sanitized.py --logs FOLDER --out benches/serving/results/sanitized.json
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import multiprocessing
import os
import re
import shutil
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import backend_steps
from common import Server
from rows import Row, row, save, show
from share_answers import TEXT, Drawn, options, parsed, parser

_PLACE = "IRMINSUL_BENCH_SANITIZED"
_NOWHERE = 0x5000_0000_0000
_calls: collections.Counter[str] = collections.Counter()


def register() -> None:
    """Hook the scheduler of the engine that `main` starts."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    scheduler = "sglang.srt.managers.scheduler.Scheduler"
    forward = "sglang.srt.model_executor.model_runner.ModelRunner.forward"
    if os.environ.get(_PLACE):
        HookRegistry.register(f"{scheduler}.__init__", _count_calls, HookType.BEFORE)
        HookRegistry.register(f"{scheduler}.run_event_loop", _last, HookType.AROUND)
        HookRegistry.register(forward, _count_graphs, HookType.AROUND)


def _count_calls(*_: object, **__: object) -> None:
    from irminsul.errors import NativeUnavailable
    from irminsul.native import loader

    with contextlib.suppress(NativeUnavailable):
        handle = loader.library()
        for name in [name for name in vars(handle) if name.startswith("irm_")]:
            setattr(handle, name, _counted(name, getattr(handle, name)))


def _counted(name: str, entry: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        _calls[name] += 1
        return entry(*arguments)

    return call


def _count_graphs(original: Callable[..., Any], runner: Any, batch: Any, *a: Any, **k: Any) -> Any:
    made = original(runner, batch, *a, **k)
    _calls["graphs"] += bool(getattr(made, "can_run_graph", False))
    return made


def _last(original: Callable[..., None], scheduler: Any, *rest: Any, **more: Any) -> None:
    """Run the scheduler; write what it has counted, then let one kernel go wrong."""
    import torch

    place = Path(os.environ[_PLACE])
    (place / "pid").write_text(str(os.getpid()))
    original(scheduler, *rest, **more)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    counts = scheduler.tree_cache._metrics.snapshot()
    (place / "served.json").write_text(json.dumps({**counts, **_calls}))
    if torch.cuda.is_available():
        _fault()


def _fault() -> None:
    import torch
    from irminsul.native.spans import write_spans

    runs = array("q", [_NOWHERE, 0, 0, 64, 0])
    with contextlib.suppress(RuntimeError):
        write_spans(runs, 64, 0, torch.zeros(1, dtype=torch.int64, device="cuda"))
        torch.cuda.synchronize()


def watched(tool: str, place: Path) -> Path:
    """Return a Python that runs what multiprocessing spawns under `tool`, reports in `place`."""
    sanitizer = (
        f"{tool} --tool memcheck --print-limit 1000 --log-file {place}/report-$$.txt "
        "--target-processes all --kernel-name kns=irminsul"
    )
    made = place / "python"
    made.write_text(
        f'#!/bin/bash\ncase "$*" in *spawn_main*) exec {sanitizer} {sys.executable} "$@";; esac\n'
        f'exec {sys.executable} "$@"\n'
    )
    made.chmod(0o755)
    return made


def errors(report: str) -> tuple[int, int]:
    """Return how many errors a report holds before the fault on purpose, and from there on."""
    printed = [part for part in re.split(r"(?m)^=+ *$", report) if "host backtrace" in part]
    summary = re.search(r"ERROR SUMMARY: (\d+) errors?$", report, re.M)
    total = int(summary[1]) if summary else len(printed)
    for before, part in enumerate(printed):
        if f"Access to {_NOWHERE:#x}"[:-4] in part:
            return before, total - before
    return total, 0


async def served(server: Server, drawn: Drawn) -> None:
    """Answer prompts of every kind; the form of attention in their ids moves all that can be."""

    def ask(*prompts: list[int], tokens: int = 12) -> Any:
        return asyncio.gather(*(server.answer(ids, "absorb", tokens) for ids in prompts))

    text, short = drawn.texts
    await ask(drawn.fresh(1))
    await ask(drawn.fresh(65))
    await ask(*(drawn.fresh(count) for count in (3, 64, 130, 700)))
    await ask(drawn.over(text, 90))
    await ask(drawn.over(text, 131))
    halves = text[: TEXT // 2] + drawn.fresh(9) + text[TEXT // 2 :]
    await ask(*(drawn.over(halves, header) for header in (70, 95, 160)))
    await ask(drawn.over(short[:150], 70))
    await ask(drawn.over(short[:150], 99))
    manager = server.engine.tokenizer_manager
    asyncio.get_running_loop().call_later(0.7, lambda: manager.abort_request(abort_all=True))
    with contextlib.suppress(ValueError):
        await ask(drawn.over(text, 30), tokens=400)
    await ask(drawn.fresh(40))


def end(server: Server, place: Path, seconds: float) -> None:
    """Let the scheduler end by itself, and its tool write a summary.

    Raises
    ------
    TimeoutError
        They have not after `seconds`.
    """
    import psutil
    from sglang.srt.managers.io_struct import ShutdownReq

    manager = server.engine.tokenizer_manager
    if manager._subprocess_watchdog is not None:
        manager._subprocess_watchdog.stop()
    scheduler, here = psutil.Process(int((place / "pid").read_text())), psutil.Process()
    tools = [above for above in scheduler.parents() if here in above.parents()]
    manager._dispatch_to_scheduler(ShutdownReq())
    _, alive = psutil.wait_procs([scheduler, *tools], timeout=seconds)
    if alive:
        raise TimeoutError(f"{len(alive)} processes have not ended after {seconds} s")


def report_rows(place: Path, case: str) -> list[Row]:
    counts = json.loads((place / "served.json").read_text())
    kept = {n: v for n, v in counts.items() if v and (n.startswith("irm_") or n.endswith("tokens"))}
    found = [errors(report.read_text(errors="replace")) for report in place.glob("report-*.txt")]
    before, after = (sum(column) for column in zip(*found, strict=True))
    about = {"samples": counts.get("irm_mla_attention", 0), "graphs": counts["graphs"], **kept}

    def made(metric: str, value: int, bar: str, **more: Any) -> Row:
        return row("backend.sanitizer", case, metric, value, "1", bar=bar, **more)

    return [
        made("errors of irminsul's kernels", before, "== 0", **about),
        made("errors from a fault on purpose at the end on", after, ">= 1", samples=1),
        made("reused tokens", int(counts["reused_tokens"]), ">= 1", samples=1),
    ]


def started(arguments: Any, place: Path) -> Server:
    """Start an engine, all of whose processes are watched."""
    backend_steps.install(place / "plugin", "sanitized", "sanitized:register")
    os.environ |= {_PLACE: str(place), "IRMINSUL_TEST_FORM": "1", "IRMINSUL_REUSE": arguments.reuse}
    if arguments.device == "cpu":
        from irminsul.demo import cpu_host

        os.environ |= cpu_host.environment(page_size=64)
    multiprocessing.set_executable(str(watched(arguments.tool, place)))
    more = {"load_format": "auto", "watchdog_timeout": 900.0, "max_running_requests": 8}
    graphs = {} if arguments.device == "cpu" else {"cuda_graph_bs_decode": [1, 4]}
    given = options(arguments) | more | graphs
    given.pop("cuda_graph_max_bs_decode", None)
    return Server(arguments.model, "irminsul", **given)


def main() -> int:
    made = parser(__doc__ or "", 64 * 399)
    made.add_argument("--reuse", choices=("share", "copy"), default="share")
    made.add_argument("--tool", default=shutil.which("compute-sanitizer") or "compute-sanitizer")
    arguments = parsed(made)
    place = arguments.logs / f"sanitized-{arguments.reuse}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    server = started(arguments, place)
    try:
        server.run(served(server, Drawn(arguments.model, 2)))
        end(server, place, 60)
        rows = report_rows(place, f"a short serve, IRMINSUL_REUSE={arguments.reuse}")
        if arguments.out:
            save(arguments.out, rows)
        show(rows)
    finally:
        server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
