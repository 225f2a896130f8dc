"""A real Mooncake Store behind the tier: what is written is read; everything else is a miss."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from irminsul.errors import InvalidParams, MissingExtra
from irminsul.tiers import (
    ChunkRows,
    ChunkSpace,
    Collected,
    MooncakeSettings,
    MooncakeTier,
)
from irminsul.tiers.mooncake import settings as settings_module
from irminsul.tiers.value import encode_into, encoded_bytes
from tiers.mooncake_store import MIB, Store, chunk, space, until

SECONDS = 20.0


def test_what_is_put_is_got_by_another_tier(store: Store) -> None:
    where = space("roundtrip")
    chunks = [chunk(where, seed, tokens=64 + seed) for seed in range(40)]
    writer, reader = store.tier(), store.tier()
    assert writer.put(chunks, SECONDS).result() == [True] * 40
    refs = [part.ref for part in chunks]
    absent = chunk(where, 99).ref
    assert reader.exists([*refs, absent], SECONDS).result() == [True] * 40 + [False]
    found = Collected()
    assert reader.get([*refs, absent], SECONDS, found).result() == [True] * 40 + [False]
    for part in chunks:
        got = found[part.ref.key]
        assert (got.base_position, got.hops, got.depth) == (
            part.base_position,
            part.hops,
            part.depth,
        )
        assert np.array_equal(got.rows, part.rows)
    assert reader.counts["hits"] == 40
    assert reader.counts["misses"] == 1
    writer.close()
    reader.close()


def test_tenants_do_not_meet(store: Store) -> None:
    tier = store.tier()
    mine = chunk(space("tenant-a"), 5)
    theirs = space("tenant-b").ref(mine.ref.tokens)
    assert tier.put([mine], SECONDS).result() == [True]
    assert tier.exists([theirs], SECONDS).result() == [False]
    tier.close()


def test_a_second_put_is_success_and_changes_nothing(store: Store) -> None:
    tier = store.tier()
    first = chunk(space("twice"), 1, base=100)
    assert tier.put([first], SECONDS).result() == [True]
    assert tier.put([chunk(space("twice"), 1, base=500)], SECONDS).result() == [True]
    found = Collected()
    tier.get([first.ref], SECONDS, found).result()
    assert found[first.ref.key].base_position == first.base_position
    tier.close()


def _write_raw(store: Store, values: dict[str, bytes]) -> None:
    """Write bytes of our choosing as any client of the store could, in a process of its own."""
    code = (
        "import json, os, sys\n"
        "from mooncake.store import MooncakeDistributedStore\n"
        "store = MooncakeDistributedStore()\n"
        f"assert store.setup('127.0.0.1', 'P2PHANDSHAKE', 0, 16 << 20, 'tcp', '', "
        f"'{store.address}') == 0\n"
        "values = json.load(sys.stdin)\n"
        "codes = [store.put(key, bytes.fromhex(value)) for key, value in values.items()]\n"
        "print('codes', sum(map(abs, codes)), flush=True)\n"
        "os._exit(0)\n"
    )
    encoded = json.dumps({key: value.hex() for key, value in values.items()})
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, input=encoded, capture_output=True, text=True, timeout=60)
    assert "codes 0" in done.stdout, done.stderr[-1000:]


def _damaged(kind: str, where: ChunkSpace) -> tuple[ChunkRows, bytes]:
    """Return a chunk, and what is under its key instead of its value."""
    good, other = chunk(where, 3), chunk(where, 4)
    value = np.empty(encoded_bytes(good.ref), dtype=np.uint8)
    encode_into(other if kind == "other text" else good, value)
    if kind == "flipped":
        value[len(value) // 2] ^= 1
    raw = {"truncated": value.tobytes()[:-1], "longer": value.tobytes() + b"\0", "empty-ish": b"x"}
    return good, raw.get(kind, value.tobytes())


def test_damaged_values_are_counted_misses_and_make_way(store: Store) -> None:
    kinds = ("truncated", "longer", "flipped", "other text", "empty-ish")
    made = {kind: _damaged(kind, space(f"damage {kind}")) for kind in kinds}
    _write_raw(store, {good.ref.key.hex(): value for good, value in made.values()})
    tier = store.tier()
    for number, (kind, (good, _)) in enumerate(made.items(), 1):
        found = Collected()
        reason = {"flipped": "checksum", "other text": "tokens"}.get(kind, "size")
        before = tier.counts[f"rejected_{reason}"]
        assert tier.get([good.ref], SECONDS, found).result() == [False]
        assert not found
        assert tier.counts[f"rejected_{reason}"] == before + 1
        assert until(lambda number=number: tier.counts["removed"] == number)
        # The way is free for a good one.
        assert tier.put([good], SECONDS).result() == [True]
        assert tier.get([good.ref], SECONDS, found).result() == [True]
        assert np.array_equal(found[good.ref.key].rows, good.rows)
    tier.close()


def test_no_store_at_start_is_no_error_and_it_is_found_later(own_store: Store) -> None:
    os.kill(own_store.master.pid, signal.SIGKILL)
    own_store.master.wait()
    tier = MooncakeTier(own_store.settings(retry_most_s=0.5))
    ref = chunk(space(), 1).ref
    began = time.monotonic()
    assert tier.exists([ref], 5.0).result() == [False]
    assert time.monotonic() - began < 1.0
    assert tier.counts["down"] == 1
    own_store.restart_master()
    assert tier.wait_until_up(30.0)
    tier.close()


def _longest_calls(tier: MooncakeTier, seconds: float, timeout: float) -> float:
    """Use the tier for `seconds`; return how long a caller was kept at worst."""
    where, worst, number = space("abuse"), 0.0, 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        number += 1
        part = chunk(where, number)
        began = time.monotonic()
        tickets = [
            tier.put([part], timeout),
            tier.exists([part.ref], timeout),
            tier.get([part.ref], timeout, lambda _: None),
        ]
        worst = max(worst, time.monotonic() - began)
        for ticket in tickets:
            began = time.monotonic()
            ticket.result()
            worst = max(worst, time.monotonic() - began - timeout)
        time.sleep(0.01)
    return worst


def test_killed_master_gives_misses_in_time_and_comes_back(own_store: Store) -> None:
    tier = own_store.tier(retry_most_s=0.5)
    part = chunk(space("kill"), 1)
    assert tier.put([part], SECONDS).result() == [True]
    os.kill(own_store.master.pid, signal.SIGKILL)
    own_store.master.wait()
    # Mooncake itself would keep its caller for seconds. The rest is for a loaded machine.
    assert _longest_calls(tier, 1.5, 0.05) < 0.5
    assert tier.get([part.ref], 0.05, lambda _: None).result() == [False]
    own_store.restart_master()
    assert until(lambda: tier.put([part], 2.0).result() == [True], 60.0), tier.counts.snapshot()
    found = Collected()
    assert until(lambda: tier.get([part.ref], 2.0, found).result() == [True], 30.0)
    assert np.array_equal(found[part.ref.key].rows, part.rows)
    tier.close()


@pytest.mark.parametrize("victim", ["master", "holder"])
def test_stopped_process_gives_misses_in_time_and_comes_back(own_store: Store, victim: str) -> None:
    tier = own_store.tier(hang_s=0.5, retry_most_s=0.5)
    part = chunk(space("stop"), 1)
    assert tier.put([part], SECONDS).result() == [True]
    process = getattr(own_store, victim)
    os.kill(process.pid, signal.SIGSTOP)
    try:
        assert _longest_calls(tier, 1.5, 0.05) < 0.5
    finally:
        os.kill(process.pid, signal.SIGCONT)
    fresh = chunk(space("stop"), 2)
    assert until(lambda: tier.put([fresh], 2.0).result() == [True], 60.0), tier.counts.snapshot()
    assert until(lambda: tier.get([fresh.ref], 2.0, Collected()).result() == [True], 30.0)
    tier.close()


def test_killed_holder_gives_misses(own_store: Store) -> None:
    tier = own_store.tier()
    part = chunk(space("holder"), 1)
    assert tier.put([part], SECONDS).result() == [True]
    own_store.holder.kill()
    own_store.holder.wait()
    assert tier.get([part.ref], 0.05, Collected()).result() == [False]
    own_store.holder = own_store.start_holder()
    fresh = chunk(space("holder"), 2)
    # The master forgets a dead holder after some seconds and places values there until then.
    assert until(
        lambda: (
            tier.put([fresh], 2.0).result() == [True]
            and tier.get([fresh.ref], 2.0, Collected()).result() == [True]
        ),
        60.0,
    ), tier.counts.snapshot()
    tier.close()


def test_the_client_process_may_die(store: Store) -> None:
    tier = store.tier(retry_s=0.05)
    part = chunk(space("client"), 1)
    assert tier.put([part], SECONDS).result() == [True]
    client = tier._link._client
    assert client is not None
    client.kill()
    assert until(lambda: tier.counts["starts"] == 2)
    assert until(lambda: tier.get([part.ref], 2.0, Collected()).result() == [True])
    tier.close()


def test_a_burst_stays_inside_its_bounds(store: Store) -> None:
    tier = store.tier(queue_bytes=4 * MIB, arena_bytes=4 * MIB, queue_calls=64)
    where = space("burst", layers=8, row_bytes=256)
    chunks = [chunk(where, seed, tokens=128) for seed in range(400)]
    most = 0
    tickets = []
    for part in chunks:
        tickets.append(tier.put([part], SECONDS))
        most = max(most, tier.queued_bytes)
        assert tier.pending <= 64
    answers = [ticket.result()[0] for ticket in tickets]
    assert most <= 4 * MIB
    assert any(answers)
    assert tier.counts["full"] == answers.count(False)
    assert until(lambda: tier.queued_bytes == 0 and tier.pending == 0)
    gets = [tier.get([part.ref], SECONDS, lambda _: None) for part in chunks]
    assert sum(ticket.result()[0] for ticket in gets) > 0
    assert until(lambda: tier.pending == 0)
    assert tier._link._room.used == 0
    tier.close()


def test_cancelled_and_expired_calls_are_not_sent(store: Store) -> None:
    tier = store.tier()
    part = chunk(space("cancel"), 1)
    assert tier.get([part.ref], 0.0, Collected()).result() == [False]
    ticket = tier.put([part], SECONDS)
    ticket.cancel()
    assert ticket.result() in ([False], [True])
    assert until(lambda: tier.pending == 0)
    tier.close()


def test_chunks_too_large_for_the_room_are_refused(store: Store) -> None:
    tier = store.tier(arena_bytes=2 * MIB)
    big = chunk(space("big", layers=16, row_bytes=1024), 1, tokens=128)
    assert tier.put([big], SECONDS).result() == [False]
    assert tier.get([big.ref], SECONDS, Collected()).result() == [False]
    assert tier.counts["full"] == 2
    tier.close()


def test_close_ends_everything(store: Store) -> None:
    tier = store.tier()
    client = tier._link._client
    assert client is not None
    waiting = tier.exists([chunk(space(), 1).ref], SECONDS)
    tier.close()
    assert client._process.returncode is not None
    assert not any(thread.is_alive() for thread in tier._link._threads)
    assert tier.put([chunk(space(), 1)], 0.1).result() == [False]
    waiting.result(1.0)
    del tier, client
    gc.collect()


def test_absent_package_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r'pip install "irminsul-kv\[mooncake\]"'):
        MooncakeTier(MooncakeSettings(master="127.0.0.1:1"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("master", "no-port"),
        ("master", "host:0"),
        ("master", ":50051"),
        ("metadata", ""),
        ("arena_bytes", 1),
        ("batch_keys", 0),
        ("workers", 0),
        ("hang_s", 0.0),
        ("hang_s", float("nan")),
        ("retry_most_s", 0.001),
    ],
)
def test_settings_are_checked(field: str, value: object) -> None:
    fields: dict[str, object] = {"master": "127.0.0.1:50051", field: value}
    with pytest.raises(InvalidParams, match=field):
        MooncakeSettings(**fields)  # type: ignore[arg-type]
