"""A store at the other end of a link that stalls: only misses, in time, and back when it is."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from irminsul.tiers import Collected, MooncakeTier
from tiers.mooncake_store import Store, chunk, require_store, space, until

PAIR = ("irmtest-a", "irmtest-b")
NAMESPACE = "irmtest"


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


@pytest.fixture
def far_side() -> Iterator[str]:
    """A network namespace at the end of a link; yields its address."""
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")):
        pytest.skip("a network namespace needs root and the commands ip and tc (iproute2)")
    with contextlib.suppress(subprocess.CalledProcessError):
        _run("ip", "netns", "del", NAMESPACE)
    try:
        _run("ip", "netns", "add", NAMESPACE)
        _run("ip", "link", "add", PAIR[0], "type", "veth", "peer", "name", PAIR[1])
        _run("ip", "link", "set", PAIR[1], "netns", NAMESPACE)
        _run("ip", "addr", "add", "10.231.7.1/30", "dev", PAIR[0])
        _run("ip", "link", "set", PAIR[0], "up")
        inside = ("ip", "netns", "exec", NAMESPACE, "ip")
        _run(*inside, "addr", "add", "10.231.7.2/30", "dev", PAIR[1])
        _run(*inside, "link", "set", PAIR[1], "up")
        _run(*inside, "link", "set", "lo", "up")
    except subprocess.CalledProcessError as error:
        with contextlib.suppress(subprocess.CalledProcessError):
            _run("ip", "netns", "del", NAMESPACE)
        pytest.skip(f"no network namespace can be made here: {error.stderr.strip()}")
    yield "10.231.7.2"
    _run("ip", "netns", "del", NAMESPACE)


def _stall(stalled: bool) -> None:
    """Delay every packet by four seconds, or lose them all where the kernel has no netem."""
    try:
        if stalled:
            _run("tc", "qdisc", "replace", "dev", PAIR[0], "root", "netem", "delay", "4000ms")
        else:
            _run("tc", "qdisc", "del", "dev", PAIR[0], "root")
    except subprocess.CalledProcessError:
        state = "down" if stalled else "up"
        _run("ip", "netns", "exec", NAMESPACE, "ip", "link", "set", PAIR[1], state)


def _worst(tier: MooncakeTier, seconds: float) -> float:
    worst, number, where = 0.0, 0, space("link")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        number += 1
        part = chunk(where, 1000 + number)
        for call in (
            lambda p=part: tier.get([p.ref], 0.05, Collected()),
            lambda p=part: tier.exists([p.ref], 0.05),
            lambda p=part: tier.put([p], 0.05),
        ):
            began = time.monotonic()
            call().result()
            worst = max(worst, time.monotonic() - began - 0.05)
        time.sleep(0.01)
    return worst


def test_a_stalled_link_is_only_misses(far_side: str, tmp_path: Path) -> None:
    require_store()
    store = Store(tmp_path, host=far_side, prefix=("ip", "netns", "exec", NAMESPACE))
    try:
        tier = store.tier(hang_s=0.5, retry_most_s=0.5, local_hostname="10.231.7.1")
        part = chunk(space("link"), 1)
        assert tier.put([part], 20.0).result() == [True]
        found = Collected()
        assert tier.get([part.ref], 20.0, found).result() == [True]
        _stall(True)
        # Mooncake itself would keep its caller for seconds. The rest is for a loaded machine.
        assert _worst(tier, 3.0) < 0.5
        assert tier.get([part.ref], 0.05, Collected()).result() == [False]
        _stall(False)
        assert until(lambda: tier.get([part.ref], 2.0, Collected()).result() == [True], 60.0), (
            tier.counts.snapshot()
        )
        tier.close()
    finally:
        store.close()
