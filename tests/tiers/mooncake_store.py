"""A real Mooncake Store on loopback: its master, and a process that holds the memory."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from irminsul import Namespace
from irminsul.tiers import ChunkRows, ChunkSpace, MooncakeSettings, MooncakeTier, RowLayout

MIB = 1 << 20


def why_not() -> str:
    """Return why no store can be started here, or an empty string."""
    for module in ("mooncake", "xxhash"):
        if importlib.util.find_spec(module) is None:
            return f"package {module} is not installed (extra irminsul-kv[mooncake])"
    probe = [sys.executable, "-c", "import mooncake.store"]
    done = subprocess.run(probe, capture_output=True, text=True, timeout=60)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it crashed"]
        return f"mooncake does not load (Debian: libibverbs1 librdmacm1 libnuma1): {lines[-1]}"
    return ""


_reason: list[str] = []


def require_store() -> None:
    """Skip the calling test with the reason when no store can be started."""
    if not _reason:
        _reason.append(why_not())
    if _reason[0]:
        pytest.skip(_reason[0])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Store:
    """Master and memory holder; both can be killed, stopped and started again."""

    def __init__(
        self,
        folder: Path,
        memory_bytes: int = 256 * MIB,
        *,
        host: str = "127.0.0.1",
        prefix: tuple[str, ...] = (),
    ) -> None:
        self.host = host
        self.port = free_port()
        self._prefix = prefix
        self.memory_bytes = memory_bytes
        self._folder = folder
        self._metrics_port = free_port()
        self.master = self._start_master()
        self.holder = self.start_holder()
        # Until its memory is there, everything is refused.
        assert until(lambda: self._metric("master_total_capacity_bytes") > 0)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def settings(self, **changes: object) -> MooncakeSettings:
        fields: dict[str, object] = {
            "master": self.address,
            "arena_bytes": 32 * MIB,
            "queue_bytes": 64 * MIB,
            "log_path": str(self._folder / "client.log"),
            **changes,
        }
        return MooncakeSettings(**fields)  # type: ignore[arg-type]

    def tier(self, **changes: object) -> MooncakeTier:
        tier = MooncakeTier(self.settings(**changes))
        assert tier.wait_until_up(30.0), (self._folder / "client.log").read_text()[-2000:]
        return tier

    def start_holder(self) -> subprocess.Popen[bytes]:
        return self._run(
            "mooncake_client",
            f"--master_server_address={self.address}",
            "--metadata_server=P2PHANDSHAKE",
            f"--host={self.host}",
            f"--port={free_port()}",
            f"--global_segment_size={self.memory_bytes}",
        )

    def restart_master(self) -> None:
        self.master = self._start_master()

    def keys(self) -> int:
        """Return how many keys the master has."""
        return self._metric("master_key_count")

    def _metric(self, name: str) -> int:
        address = f"http://{self.host}:{self._metrics_port}/metrics"
        with urllib.request.urlopen(address, timeout=10.0) as reply:
            lines = reply.read().decode().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name} "))

    def settled(self, more_than: int = 0, timeout: float = 30.0) -> bool:
        """Wait until there are more keys than that, and no new ones for a while."""
        known, since = -1, time.monotonic()
        end = since + timeout
        while time.monotonic() < end:
            keys, now = self.keys(), time.monotonic()
            if keys != known:
                known, since = keys, now
            elif keys > more_than and now - since > 0.6:
                return True
            time.sleep(0.1)
        return False

    def close(self) -> None:
        for process in (self.holder, self.master):
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()

    def _start_master(self) -> subprocess.Popen[bytes]:
        process = self._run(
            "mooncake_master",
            f"--rpc_port={self.port}",
            f"--rpc_address={self.host}",
            f"--metrics_port={self._metrics_port}",
            f"--metrics_host={self.host}",
        )
        until = time.monotonic() + 30.0
        while time.monotonic() < until:
            with socket.socket() as probe:
                if probe.connect_ex((self.host, self.port)) == 0:
                    return process
            time.sleep(0.05)
        raise TimeoutError("mooncake_master does not answer")

    def _run(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        # The package's own binaries, without its Python launchers: then a kill meets the program.
        spec = importlib.util.find_spec("mooncake")
        assert spec is not None
        assert spec.submodule_search_locations
        binary = Path(spec.submodule_search_locations[0]) / name
        # Unpacked from a wheel without the right to run.
        binary.chmod(binary.stat().st_mode | 0o111)
        with open(self._folder / f"{name}.log", "ab") as log:
            return subprocess.Popen(
                [*self._prefix, str(binary), *arguments],
                stdout=log,
                stderr=log,
                env=dict(os.environ),
            )


def space(tenant: str = "", layers: int = 3, row_bytes: int = 96) -> ChunkSpace:
    return ChunkSpace(
        Namespace(model="m", tenant=tenant), RowLayout("test-rows", layers, row_bytes)
    )


def chunk(where: ChunkSpace, seed: int, tokens: int = 64, base: int = 100) -> ChunkRows:
    """Return a chunk whose ids and rows follow from `seed`."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, 1 << 32, tokens, dtype=np.uint32)
    shape = (where.layout.layers, tokens, where.layout.row_bytes)
    rows = random.integers(0, 256, shape, dtype=np.uint8)
    return ChunkRows(where.ref(ids), base + seed, 0, seed % 3, rows)


def until(condition: object, timeout: float = 30.0) -> bool:
    """Wait until `condition()` holds."""
    assert callable(condition)
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False
