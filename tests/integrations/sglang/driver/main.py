"""A configuration file -> the facts that one engine's scenarios found, as JSON.

Run by the tests in a process of its own, with one SGLang version on PYTHONPATH.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path


def main() -> None:
    config = json.loads(Path(sys.argv[1]).read_text())
    from host import Host

    began = time.monotonic()
    host = Host(config)
    facts: dict[str, object] = {"start_seconds": time.monotonic() - began}
    for name in config["scenarios"]:
        began = time.monotonic()
        facts[name] = importlib.import_module(name).run(host)
        facts[f"{name}_seconds"] = time.monotonic() - began
        Path(config["facts"]).write_text(json.dumps(facts))
    host.idle_check()
    facts["counts"] = host.counts()
    Path(config["facts"]).write_text(json.dumps(facts))
    host.engine.shutdown()


if __name__ == "__main__":
    main()
