"""A store at the other end of a link that stalls: only misses, in time, and back when it is."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from irminsul.tiers import Collected, MooncakeTier
from tiers.far_link import FAR, NEAR, PREFIX, NoLink, far_link, stall
from tiers.mooncake_store import Store, chunk, require_store, space, until


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


def test_a_stalled_link_is_only_misses(tmp_path: Path) -> None:
    require_store()
    try:
        with far_link():
            _stall_and_go_on(tmp_path)
    except NoLink as reason:
        pytest.skip(str(reason))


def _stall_and_go_on(folder: Path) -> None:
    store = Store(folder, host=FAR, prefix=PREFIX)
    try:
        tier = store.tier(hang_s=0.5, retry_most_s=0.5, local_hostname=NEAR)
        part = chunk(space("link"), 1)
        assert tier.put([part], 20.0).result() == [True]
        found = Collected()
        assert tier.get([part.ref], 20.0, found).result() == [True]
        stall(True)
        # Mooncake itself would keep its caller for seconds. The rest is for a loaded machine.
        assert _worst(tier, 1.5) < 0.5
        assert tier.get([part.ref], 0.05, Collected()).result() == [False]
        stall(False)
        assert until(lambda: tier.get([part.ref], 2.0, Collected()).result() == [True], 60.0), (
            tier.counts.snapshot()
        )
        tier.close()
    finally:
        store.close()
