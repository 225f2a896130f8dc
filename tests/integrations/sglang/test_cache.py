"""The recorded radix tree against the truth, on SGLang's own tree and allocators."""

from __future__ import annotations

import json

import hosts
import pytest

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("version", hosts.VERSIONS if hosts.EVERYTHING else hosts.ENDS)
def test_random_traffic_never_finds_a_row_that_is_not_what_it_claims(version: str) -> None:
    done = hosts.run(version, hosts.HERE / "driver" / "cache_fuzz.py", "400")
    assert done.returncode == 0, done.stderr[-4000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("FACTS "))
    for found in json.loads(line.removeprefix("FACTS ")):
        assert found["lies"] == 0, found
        assert found["tenants_mixed"] == 0, found
        assert found["unresolved"] == 0, found
        assert not found["broken"], found
        assert found["fallback"].keys() <= {"exact"}, found
        assert found["reused"] > 1500, found
        assert found["pieces"] > 10, found
