"""The doctor says whether chunks go to the store and come back, and what to do if not."""

from __future__ import annotations

import pytest
from irminsul import doctor
from irminsul.tiers import MooncakeSettings
from irminsul.tiers import examine as module
from irminsul.tiers.examine import examine_store
from irminsul.tiers.mooncake import settings as settings_module
from tiers.mooncake_store import Store, free_port, require_store


def _statuses(settings: MooncakeSettings | None) -> dict[str, str]:
    return {finding.name: finding.status for finding in examine_store(settings)}


def test_without_the_package_it_is_absent_or_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_module.importlib.util, "find_spec", lambda name: None)
    assert _statuses(None) == {"mooncake": "absent"}
    (finding,) = examine_store(MooncakeSettings(master="127.0.0.1:1"))
    assert finding.status == "mismatch"
    assert "pip install" in finding.detail


def test_nothing_configured_is_no_fault() -> None:
    require_store()
    assert _statuses(None) == {"mooncake": "ok", "master": "absent"}


def test_no_master() -> None:
    require_store()
    findings = list(examine_store(MooncakeSettings(master=f"127.0.0.1:{free_port()}")))
    assert findings[-1].status == "mismatch"
    assert "start mooncake_master" in findings[-1].detail


def test_a_store_that_works(store: Store) -> None:
    names = {"mooncake": "ok", "master": "ok", "client": "ok", "store": "ok"}
    assert _statuses(store.settings()) == names


def test_a_master_without_memory(own_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WAIT_S", 5.0)
    own_store.holder.kill()
    own_store.holder.wait()
    own_store.master.kill()
    own_store.master.wait()
    own_store.restart_master()
    findings = list(examine_store(own_store.settings()))
    assert findings[-1].name == "store"
    assert findings[-1].status == "mismatch"
    assert "mooncake_client" in findings[-1].detail


def test_the_doctor_looks_where_the_engine_would(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IRMINSUL_POOL_MASTER", store.address)
    checks = {check.name: check for check in doctor._tiers()}
    assert checks["master"].detail == store.address
    assert checks["store"].status == "ok"
    monkeypatch.setenv("IRMINSUL_POOL_MASTER", "nowhere")
    (check,) = doctor._tiers()
    assert check.status == "mismatch"
    assert "host:port" in check.detail
