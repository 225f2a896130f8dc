"""Faults of a store under requests that wait for it -> how long, what wrong, what memory.

    python benches/tiers/faults.py --out benches/tiers/results/faults.json

A writer puts documents in a store, a reader serves requests for them (`served.py`). In the middle
of it something breaks, and is mended later. What the machine itself keeps from a thread that only
sleeps is reported beside.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from irminsul.tiers import ChunkRows
from irminsul.tiers.value import encode_into, encoded_bytes
from report import processor, save
from served import (
    ARENA_BYTES,
    DOCUMENT,
    HOST_BYTES,
    QUEUE_BYTES,
    SPACE,
    Request,
    Seen,
    computed,
    document,
    pool_on,
    request,
    summary,
    ticking,
    truth,
    written,
)
from tiers.far_link import FAR, NEAR, PREFIX, NoLink, far_link, stall
from tiers.mooncake_store import Store, until


def broken(
    case: str, store: Store, breaks: Callable[[], None], mends: Callable[[], None], **settings: Any
) -> dict[str, Any]:
    """Serve requests before, while and after something is broken."""
    writer, reader = pool_on(store, **settings), pool_on(store, **settings)
    for seed in range(12):
        written(writer, seed)
    assert until(lambda: writer.remote.pending == 0)
    time.sleep(0.3)
    seen, before, number = Seen(), Seen(), 0
    with ticking() as late:
        for seed in range(4):
            request(reader, seed, seed, before)
        breaks()
        end = time.monotonic() + 3.0
        while time.monotonic() < end:
            number += 1
            request(reader, number % 12, 100 + number, seen)
            written(reader, 1000 + number % 40)
            time.sleep(0.005)
        mends()

    def again() -> bool:
        """Return whether what one engine writes now reaches another."""
        nonlocal number
        number += 1
        written(writer, 5000 + number)
        time.sleep(0.2)
        after = Seen()
        request(reader, 5000 + number, 9000 + number, after)
        seen.wrong += after.wrong
        return after.reused > 0

    began = time.monotonic()
    back = until(again, 60.0)
    facts = summary(seen, late, reader) | {
        "reused_before": before.reused,
        "back_after_s": round(time.monotonic() - began, 1) if back else None,
    }
    writer.close()
    reader.close()
    return row(case, facts)


def damaged(store: Store) -> dict[str, Any]:
    """Serve requests whose values were truncated, or had bits flipped, by another client."""
    reader = pool_on(store)
    values = []
    random = np.random.default_rng(0)
    for seed in range(12):
        for part in reader.chunks(SPACE, document(seed), [(0, DOCUMENT)]):
            whole = ChunkRows(part.ref, part.start, 0, 0, truth(part.ref.tokens, part.start))
            value = np.empty(encoded_bytes(part.ref), dtype=np.uint8)
            encode_into(whole, value)
            if seed % 2:
                value[random.integers(0, len(value))] ^= 1 << random.integers(0, 8)
            values.append((part.ref.key.hex(), value[: None if seed % 2 else -64].tobytes()))
    _write_raw(store, values)
    seen = Seen()
    with ticking() as late:
        for number in range(24):
            request(reader, number % 12, number, seen)
            reader.clear()
    facts = summary(seen, late, reader) | {"values": len(values)}
    reader.close()
    return row("values truncated or with flipped bits", facts)


def _write_raw(store: Store, values: list[tuple[str, bytes]]) -> None:
    code = (
        "import os, pickle, sys\n"
        "from mooncake.store import MooncakeDistributedStore\n"
        "store = MooncakeDistributedStore()\n"
        "where = ('127.0.0.1', 'P2PHANDSHAKE', 0, 1 << 24, 'tcp', '')\n"
        f"assert store.setup(*where, '{store.address}') == 0\n"
        "for key, value in pickle.load(sys.stdin.buffer):\n"
        "    assert store.put(key, value) == 0\n"
        "os._exit(0)"
    )
    command = [sys.executable, "-c", code]
    subprocess.run(command, input=pickle.dumps(values), stderr=subprocess.DEVNULL, check=True)


def burst(store: Store) -> dict[str, Any]:
    """Let 200 requests enter at once, more than host memory holds, written behind as well."""
    writer, reader = pool_on(store), pool_on(store)
    for seed in range(60):
        written(writer, seed)
        assert until(lambda: writer.remote.pending < 4)
    assert until(lambda: writer.remote.pending == 0)
    seen, most = Seen(), {"host": 0, "room": 0, "queued": 0, "pending": 0}
    over = threading.Event()

    def watch() -> None:
        tier = reader.remote
        while not over.wait(0.001):
            now = (reader.host.used_bytes, tier._link._room.used, tier.queued_bytes, tier.pending)
            for name, value in zip(most, now, strict=True):
                most[name] = max(most[name], value)

    behind_them = [computed(reader, seed) for seed in range(2000, 2025)]

    def write() -> None:
        for parts in behind_them:
            reader.keep(parts)

    watching = threading.Thread(target=watch)
    watching.start()
    before = _resident()
    with ticking() as late:
        behind = threading.Thread(target=write)
        behind.start()
        waiting: list[Request] = []
        served = []
        for number in range(200):
            served.append(Request(reader, number % 60, number))
            waiting = [one for one in [*waiting, served[-1]] if not one.over(seen)]
        while waiting:
            waiting = [one for one in waiting if not one.over(seen)]
            time.sleep(0.0005)
        behind.join()
    for one in served:
        one.check(seen)
    facts = summary(seen, late, reader) | {
        "most": most,
        "bounds": {"host": HOST_BYTES, "room": ARENA_BYTES, "queued": QUEUE_BYTES, "pending": 256},
        "resident_growth": _resident() - before,
    }
    over.set()
    watching.join()
    writer.close()
    reader.close()
    return row("burst of 200 requests", facts)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def row(case: str, facts: dict[str, Any]) -> dict[str, Any]:
    found = {
        "bar_id": "tiers.3",
        "case": case,
        "metric": "longest stall of a request",
        "value": facts["longest_stall_ms"],
        "unit": "ms",
        "rival": "longest delay of a thread that only sleeps 1 ms, ms",
        "rival_value": facts["machine_longest_ms"],
        "bar": "<= 50, 0 wrong rows",
        "samples": facts,
    }
    if "most" in facts:
        used = max(facts["most"][name] / bound for name, bound in facts["bounds"].items())
        found |= {"metric": "most memory or entries, of what is allowed", "value": round(used, 3)}
        found |= {"unit": "", "rival": None, "rival_value": None, "bar": "<= 1, 0 wrong rows"}
    print(json.dumps(found), flush=True)
    return found


def cases(folder: Path) -> Iterator[dict[str, Any]]:
    """Run everything, each on a store of its own."""

    def fresh(name: str) -> contextlib.closing[Store]:
        (folder / name).mkdir()
        return contextlib.closing(Store(folder / name, 256 << 20))

    def kill(process: Any) -> None:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    with fresh("a") as store:
        yield broken(
            "kill -9 of the master", store, lambda: kill(store.master), store.restart_master
        )
    with fresh("b") as store:

        def restart() -> None:
            store.holder = store.start_holder()

        yield broken(
            "kill -9 of the process that holds the rows", store, lambda: kill(store.holder), restart
        )
    for victim in ("master", "holder"):
        with fresh(victim) as store:
            pid = getattr(store, victim).pid
            yield broken(
                f"{victim} stopped",
                store,
                lambda pid=pid: os.kill(pid, signal.SIGSTOP),
                lambda pid=pid: os.kill(pid, signal.SIGCONT),
            )
    with fresh("d") as store:
        yield damaged(store)
    with fresh("e") as store:
        yield burst(store)
    try:
        with far_link():
            (folder / "far").mkdir()
            with contextlib.closing(
                Store(folder / "far", 256 << 20, host=FAR, prefix=PREFIX)
            ) as store:
                yield broken(
                    "link stalled, in a network namespace",
                    store,
                    lambda: stall(True),
                    lambda: stall(False),
                    local_hostname=NEAR,
                )
    except NoLink as reason:
        print(f"no stalled link: {reason}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for found in cases(Path(folder)):
            rows.append(found)
            save(arguments.out, processor(), "faults.py", rows)


if __name__ == "__main__":
    main()
