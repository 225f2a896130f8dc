"""Where a store should be -> whether chunks really go there and come back.

Must not know engines or settings; for tools, which may wait, not for data paths.
"""

from __future__ import annotations

import importlib.metadata
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from irminsul import Namespace
from irminsul.errors import IrminsulError
from irminsul.tiers.base import Collected
from irminsul.tiers.keys import ChunkSpace, RowLayout
from irminsul.tiers.mooncake.process import answers
from irminsul.tiers.mooncake.settings import MooncakeSettings, require_mooncake
from irminsul.tiers.mooncake.tier import MooncakeTier
from irminsul.tiers.value import ChunkRows

__all__ = ["Finding", "examine_store"]

_PACKAGES = (
    "mooncake-transfer-engine-non-cuda",
    "mooncake-transfer-engine",
    "mooncake-transfer-engine-cuda13",
)
_WAIT_S = 15.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; ``status`` and ``detail`` as in `irminsul.doctor.Check`."""

    name: str
    status: Literal["ok", "absent", "mismatch"]
    detail: str


def examine_store(settings: MooncakeSettings | None) -> Iterator[Finding]:
    """Yield what works of a Mooncake Store, from the package to a chunk that comes back.

    Parameters
    ----------
    settings : MooncakeSettings, optional
        Where the store should be; None when none is configured, which is no fault.
    """
    try:
        require_mooncake()
    except IrminsulError as error:
        yield Finding("mooncake", "mismatch" if settings else "absent", str(error))
        return
    yield Finding("mooncake", "ok", _version())
    if settings is None:
        yield Finding("master", "absent", "no store is configured (IRMINSUL_POOL_MASTER)")
        return
    if not answers(settings.address, 2.0):
        detail = (
            f"nothing answers at {settings.master}: start mooncake_master there, or open the port"
        )
        yield Finding("master", "mismatch", detail)
        return
    yield Finding("master", "ok", settings.master)
    yield from _roundtrip(settings)


def _roundtrip(settings: MooncakeSettings) -> Iterator[Finding]:
    tier = MooncakeTier(settings)
    try:
        if not tier.wait_until_up(_WAIT_S):
            yield Finding(
                "client",
                "mismatch",
                f"Mooncake's client does not connect to {settings.master} as "
                f"{settings.local_hostname} over {settings.protocol} (Debian needs libibverbs1, "
                "librdmacm1 and libnuma1)",
            )
            return
        yield Finding("client", "ok", f"{settings.local_hostname}, {settings.protocol}")
        yield _store_finding(tier)
    finally:
        tier.close()


def _store_finding(tier: MooncakeTier) -> Finding:
    """Put a chunk of this very second and get it back."""
    space = ChunkSpace(Namespace(model="irminsul doctor"), RowLayout("doctor", 1, 1024))
    ids = np.frombuffer(os.urandom(4 * 64), dtype=np.uint32)
    rows = np.frombuffer(os.urandom(64 * 1024), dtype=np.uint8).reshape(1, 64, 1024)
    part = ChunkRows(space.ref(ids), 0, 0, 0, rows)
    began = time.perf_counter()
    if tier.put([part], _WAIT_S).result() != [True]:
        reason = "no memory: start mooncake_client on a host, or give it more"
        if not tier.counts["no_space"]:
            reason = "its memory holder does not answer"
        return Finding("store", "mismatch", f"a chunk cannot be written: {reason}")
    found = Collected()
    tier.get([part.ref], _WAIT_S, found).result()
    if part.ref.key not in found or not np.array_equal(found[part.ref.key].rows, rows):
        return Finding("store", "mismatch", "a chunk was written and does not come back")
    milliseconds = 1e3 * (time.perf_counter() - began)
    return Finding("store", "ok", f"a chunk was written and read in {milliseconds:.0f} ms")


def _version() -> str:
    for name in _PACKAGES:
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return "mooncake, of no known package"
