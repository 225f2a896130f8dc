"""Some requests to the moving and the lending engine under torch's profiler -> where time goes.

Must not time anything that counts: the profiler slows the host, and Python stacks slow it more.

    python benches/serving/share.py --model FOLDER --profile FILE
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Sums = dict[str, list[float]]  # name -> [times, milliseconds]

GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_CALLS = ("cuda_runtime", "cuda_driver")
_OURS = "irminsul/"
# Parts of SGLang's scheduler that every request goes through, by the end of their names.
_HOST = (
    ": recv_requests",
    ": process_input_requests",
    ": get_next_batch_to_run",
    ": get_new_batch_prefill",
    ": prepare_for_extend",
    ": alloc_for_extend",
    ": run_batch",
    ": process_batch_result",
    ": process_batch_result_prefill",
    ": cache_finished_req",
    ": cache_unfinished_req",
    ": forward_extend",
    ": forward_decode",
)


def trace(server: Any, prompts: Sequence[Any], stacks: bool, device: str) -> list[dict[str, Any]]:
    """Answer `prompts`, one after the other, and return the trace's events."""
    with tempfile.TemporaryDirectory(prefix="irminsul-trace-") as folder:
        activities = ["CPU"] if device == "cpu" else ["CPU", "GPU"]
        server.engine.start_profile(
            output_dir=folder, activities=activities, with_stack=stacks, record_shapes=False
        )
        for prompt in prompts:
            server.serve(prompt)
        server.engine.stop_profile()
        found = [path for path in Path(folder).rglob("*") if path.is_file()]
        with gzip.open(max(found, key=lambda path: path.stat().st_size)) as file:
            return list(json.load(file)["traceEvents"])


def sums(events: Iterable[dict[str, Any]], requests: int) -> Sums:
    """Add up events by name, for one request of `requests`."""
    found: Sums = defaultdict(lambda: [0, 0.0])
    for event in events:
        one = found[str(event["name"])]
        one[0] += 1 / requests
        one[1] += event.get("dur", 0) / 1e3 / requests
    items = sorted(found.items(), key=lambda item: -item[1][1])
    return {name: [round(times, 1), round(ms, 3)] for name, (times, ms) in items}


def busy(events: Iterable[dict[str, Any]], requests: int) -> float:
    """Return for how many milliseconds a request anything ran on the GPU."""
    end = total = 0.0
    for start, length in sorted((event["ts"], event["dur"]) for event in events):
        total += max(0.0, start + length - max(start, end))
        end = max(end, start + length)
    return round(total / 1e3 / requests, 3)


def profile(server: Any, prompts: Sequence[Any], device: str) -> dict[str, Any]:
    """Return what a request costs: on the GPU, in calls of the driver, and in Python."""
    half = len(prompts) // 2
    plain = trace(server, prompts[:half], stacks=False, device=device)
    gpu = [event for event in plain if event.get("cat") in GPU]
    calls = [event for event in plain if event.get("cat") in _CALLS]
    rest = prompts[half:]
    python = [
        event
        for event in trace(server, rest, stacks=True, device=device)
        if event.get("cat") == "python_function"
    ]
    ours = [event for event in python if _OURS in event["name"]]
    host = [event for event in python if event["name"].endswith(_HOST)]
    return {
        "gpu_busy_ms": busy(gpu, half),
        "kernels": sums(gpu, half),
        "calls": sums(calls, half),
        "operators": sums((event for event in plain if event.get("cat") == "cpu_op"), half),
        "irminsul": sums(ours, len(rest)),
        "scheduler": sums(host, len(rest)),
    }


def differences(both: dict[str, dict[str, Any]], part: str, most: int) -> list[str]:
    """Return the lines of `part` in which the engines differ most."""
    copy, share = both["copy"][part], both["share"][part]
    none = [0, 0.0]
    lines = []
    for name in copy.keys() | share.keys():
        (times, before), (now, after) = copy.get(name, none), share.get(name, none)
        change = f"{after - before:+8.3f} ms: {before:.3f} x{times:.0f} -> {after:.3f} x{now:.0f}"
        lines.append((-abs(after - before), f"{part:<9} {name[-60:]:<60} {change}"))
    return [line for _, line in sorted(lines)[:most]]


def save(both: dict[str, dict[str, Any]], out: Path) -> None:
    """Write the sums to `out`, and show where the engines differ."""
    out.write_text(json.dumps(both, indent=1) + "\n")
    print("gpu busy, ms a request:", {mode: one["gpu_busy_ms"] for mode, one in both.items()})
    for part, most in (("kernels", 5), ("calls", 5), ("irminsul", 6), ("scheduler", 3)):
        print(*differences(both, part, most), sep="\n", flush=True)
