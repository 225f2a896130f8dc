"""Two ranks with tiers, one of which loses chunks and is late: equal plans, true answers, reuse."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "integrations" / "sglang"))

import hosts
from tiers.mooncake_store import Store

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(1500)]

DRIVER = Path(__file__).parent / "driver" / "ranks.py"


def _facts(folder: Path, store: Store, version: str) -> dict[str, Any]:
    dump, facts, given = folder / "dump", folder / "facts", folder / "config"
    dump.mkdir()
    config = {
        "model": hosts.model(),
        "dump": str(dump),
        "facts": str(facts),
        "page_size": 1,
        "chunk": -1,
        "overlap": True,
        "pool": 4096,
        "arguments": {"tp_size": 2, "log_level": "info"},
        "environment": {
            "IRMINSUL_MIN_SPAN": "16",
            "IRMINSUL_HOST_BYTES": str(256 << 20),
            "IRMINSUL_POOL_MASTER": store.address,
            "IRMINSUL_POOL_WAIT": "5",
        },
    }
    given.write_text(json.dumps(config))
    done = hosts.run(version, DRIVER, str(given))
    if done.returncode or not facts.exists():
        pytest.fail(f"the engine failed:\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}")
    found: dict[str, Any] = json.loads(facts.read_text())
    return found


@pytest.mark.parametrize("version", hosts.ENDS if hosts.EVERYTHING else hosts.ENDS[-1:])
def test_ranks_that_hold_different_chunks_serve_as_one(
    version: str, own_store: Store, tmp_path: Path
) -> None:
    facts = _facts(tmp_path, own_store, version)
    first, second = facts["plans"]
    assert first == second
    assert len(first) >= 8
    assert all(answer["cached"] == 0 for answer in facts["first"])
    # The same text at the same place: what comes back from host memory changes no answer.
    evicted = facts["evicted"]
    assert [answer["tokens"] for answer in evicted] == [a["tokens"] for a in facts["first"]]
    # One rank loses a third of what it finds, and parts of the rest.
    assert sum(answer["cached"] for answer in evicted) >= 600
    assert sum(answer["cached"] for answer in facts["stored"]) >= 400
    assert sum(facts["burst"]) >= 4000
    ours, theirs = facts["counts"]
    assert ours["tier_reused_tokens"] == theirs["tier_reused_tokens"] > 1000
    assert not {"tier_plan", "tier_write", "tier_fetch"} & ours["fallback"].keys()
