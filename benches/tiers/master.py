"""One Mooncake master and recorded traffic -> what a thousand hosts would ask of masters.

    python benches/tiers/master.py FILE.jsonl.zst ... --out benches/tiers/results/master.json

Two measurements. The master: processor time and memory for each key that is written, asked for and
fetched, in batches of 45, from its own process's counters. The traffic: for each recorded call, how
many chunks it has, how many of them and of their signposts no call had before, and how many
signposts are looked for. `docs/deploy.md` multiplies the two.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from irminsul import ChunkParams, Namespace, chunk
from irminsul.demo.prompts import encode_calls
from irminsul.tiers import ChunkSpace, RowLayout
from irminsul.tiers.signposts import Signposts
from irminsul.tokenizer import load_tokenizer
from irminsul.traces.reader import read_calls
from report import processor, save
from tiers.mooncake_store import Store

KEYS, BATCH = 40_000, 45
SPACE = ChunkSpace(Namespace(), RowLayout("none", 1, 1))

CLIENT = """
import os, sys
import numpy as np
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", sys.argv[1]) == 0
memory = np.zeros(1 << 20, dtype=np.uint8)
assert store.register_buffer(memory.ctypes.data, len(memory)) == 0
keys, batch = int(sys.argv[2]), int(sys.argv[3])
pointers, sizes = [memory.ctypes.data + 1024 * i for i in range(batch)], [1024] * batch
def every(call):
    for first in range(0, keys, batch):
        names = [f"{number:064x}" for number in range(first, min(keys, first + batch))]
        call(names, pointers[: len(names)], sizes[: len(names)])
for line in sys.stdin:
    if line.startswith("put"):
        every(store.batch_put_from)
    elif line.startswith("exists"):
        every(lambda names, *_: store.batch_is_exist(names))
    elif line.startswith("get"):
        every(store.batch_get_into)
    print("done", flush=True)
os._exit(0)
"""


def spent(pid: int) -> tuple[float, int]:
    """Return seconds of processor and resident bytes of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds, int(fields[21]) * os.sysconf("SC_PAGE_SIZE")


def measure(folder: Path) -> list[dict[str, Any]]:
    """Return what the master spends on each key."""
    store, rows = Store(folder, 512 << 20), []
    command = [sys.executable, "-c", CLIENT, store.address, str(KEYS), str(BATCH)]
    client = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert client.stdin is not None
    assert client.stdout is not None
    try:
        for kind in ("nothing", "put", "exists", "get"):
            before = spent(store.master.pid)
            client.stdin.write(kind + "\n")
            client.stdin.flush()
            while "done" not in client.stdout.readline():
                pass  # Mooncake prints there too
            after = spent(store.master.pid)
            if kind == "nothing":
                continue
            used = 1e6 * (after[0] - before[0]) / KEYS
            rows.append(row(f"master, a key in batches of {BATCH}: {kind}", used, "us of one core"))
            if kind == "put":
                held = (after[1] - before[1]) / KEYS
                rows.append(row("master, memory of a key", held, "bytes"))
    finally:
        client.kill()
        store.close()
    return rows


def traffic(source: str) -> dict[str, Any]:
    """Return means over the calls of one file."""
    posts, keys, known = Signposts(ChunkParams()), set[bytes](), set[bytes]()
    total = dict.fromkeys(("calls", "tokens", "chunks", "new_chunks", "new_tokens"), 0)
    total |= {"signposts_asked": 0, "new_signposts": 0}
    for prompt in encode_calls(read_calls(source), load_tokenizer(None), 129_280, 1 << 30):
        bounds = chunk(prompt.ids).bounds.tolist()[:-1]
        total["calls"] += 1
        total["tokens"] += len(prompt.ids)
        total["chunks"] += len(bounds) - 1
        for start, end in pairwise(bounds):
            ref = SPACE.ref(prompt.ids[start:end])
            if ref.key in keys:
                continue
            keys.add(ref.key)
            made = {post.ref.key for post in posts.of(ref)}
            total["new_chunks"] += 1
            total["new_tokens"] += end - start
            total["signposts_asked"] += len(made)
            total["new_signposts"] += len(made - known)
            known |= made
    calls = total["calls"]
    return {"calls": calls} | {
        name: round(value / calls, 2) for name, value in total.items() if name != "calls"
    }


def row(case: str, value: float, unit: str, **samples: Any) -> dict[str, Any]:
    return {
        "bar_id": "tiers.5",
        "case": case,
        "metric": "cost" if not samples else "new chunks of a call",
        "value": round(value, 2),
        "unit": unit,
        "rival": "",
        "rival_value": None,
        "bar": None,
        "samples": samples,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="*")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder))
    names = " ".join(Path(name).name for name in arguments.files)
    for source in arguments.files:
        found = traffic(source)
        name = Path(source).name.split(".")[0]
        rows.append(row(f"traffic, {name}", found["new_chunks"], "chunks", **found))
        save(arguments.out, processor(), f"master.py {names}", rows)
    for found in rows:
        print(found["case"], found["value"], found["unit"], found["samples"])


if __name__ == "__main__":
    main()
