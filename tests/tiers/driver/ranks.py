"""An engine of two ranks with tiers -> what it took from host memory and from the store, as JSON.

Run by the tests in a process of its own, with one SGLang version on PYTHONPATH.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "integrations" / "sglang" / "driver"))

import unequal
from host import Host, answer
from irminsul.demo.plugin import plugin_folder
from text import Writer

POOL = 4096


def traffic(writer: Writer, prompts: int) -> list[list[int]]:
    """Return prompts of text of their own, long enough for whole chunks."""
    return [writer.text(60 + 7 * number) + writer.text(700) for number in range(prompts)]


def serve(host: Host, prompts: list[list[int]], name: str) -> list[dict[str, Any]]:
    return [
        answer(host.run(ids, f"{name}-{number}", max_new_tokens=4))
        for number, ids in enumerate(prompts)
    ]


def run(host: Host) -> dict[str, Any]:
    writer = Writer(seed=21)
    prompts = traffic(writer, 5)
    first = serve(host, prompts, "first")
    time.sleep(6.0)  # written behind
    for number in range(3):
        host.run(writer.text(POOL // 2 - 64), f"noise-{number}", max_new_tokens=1)
    evicted = serve(host, prompts, "evicted")
    host.flush()
    # Nothing of its own is left, in no tier but the store; the header is another one.
    moved = [writer.text(40) + ids[60 + 7 * number :] for number, ids in enumerate(prompts)]
    stored = serve(host, moved, "stored")
    burst = _burst(host, writer)
    host.idle_check()
    return {
        "first": first,
        "evicted": evicted,
        "stored": stored,
        "burst": burst,
        "counts": [host.dumps("rows", rank)[-1]["counts"] for rank in (0, 1)],
        "plans": [[plan["requests"] for plan in host.dumps("plan", rank)] for rank in (0, 1)],
    }


def _burst(host: Host, writer: Writer) -> list[int]:
    """Serve more than the pool holds at once, time and again; return tokens reused."""
    documents = [writer.text(500) for _ in range(4)]
    cached = []
    for turn in range(4):
        requests = [
            host.request(
                writer.text(writer.number(33, 90)) + writer.choice(documents) + writer.text(9),
                f"burst-{turn}-{slot}",
                max_new_tokens=3,
            )
            for slot in range(8)
        ]
        cached += [answer(result)["cached"] for result in host.run_all(requests)]
    return cached


def main() -> None:
    config = json.loads(Path(sys.argv[1]).read_text())
    plugins = plugin_folder(
        Path(tempfile.mkdtemp(dir=config["dump"])) / "plugin", unequal.NAME, unequal.__name__
    )
    paths = (str(plugins), str(Path(__file__).parent), os.environ["PYTHONPATH"])
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    host = Host(config)
    Path(config["facts"]).write_text(json.dumps(run(host)))
    host.engine.shutdown()


if __name__ == "__main__":
    main()
