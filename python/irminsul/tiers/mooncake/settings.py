"""Where a Mooncake Store is and what may be spent on it -> one frozen, checked object.

Must not import mooncake: whether it is installed is asked when a tier starts.
"""

from __future__ import annotations

import importlib.util
from dataclasses import asdict, dataclass

from irminsul.errors import InvalidParams, MissingExtra

__all__ = ["MooncakeSettings", "require_mooncake"]


@dataclass(frozen=True)
class MooncakeSettings:
    """How to reach and use a Mooncake Store.

    Parameters
    ----------
    master : str
        ``host:port`` of ``mooncake_master``.
    metadata : str
        Transfer engine's metadata service: ``P2PHANDSHAKE`` (none needed), ``http://...``,
        ``etcd://...``, ``redis://...``.
    local_hostname : str
        Address of this host that peers can reach; Mooncake picks the port.
    protocol : str
        ``tcp``, ``rdma`` or what else the installed build offers.
    device : str
        Network devices for RDMA, comma-separated; empty lets Mooncake choose.
    arena_bytes : int
        Memory shared with the client process: half receives, half sends. At least 2 MiB, and no
        chunk may be larger than half of it.
    queue_bytes : int
        Most bytes of chunks that wait to be sent; what exceeds it is dropped and counted.
    queue_calls : int
        Most calls under way; what exceeds it is a miss and counted.
    batch_keys : int
        Most keys of one Mooncake call.
    workers : int
        Calls that Mooncake works on at once, and threads that fill and that check values here.
    hang_s : float
        A call that has taken this long, and a second for every 16 MiB, means a hung client: its
        process is ended and started again.
    retry_s, retry_most_s : float
        First and longest wait before the store is tried again after a failure.
    log_path : str
        File that receives Mooncake's own log lines; empty drops them.

    Raises
    ------
    InvalidParams
        A field lies outside its range.
    """

    master: str
    metadata: str = "P2PHANDSHAKE"
    local_hostname: str = "127.0.0.1"
    protocol: str = "tcp"
    device: str = ""
    arena_bytes: int = 256 << 20
    queue_bytes: int = 256 << 20
    queue_calls: int = 256
    batch_keys: int = 32
    workers: int = 4
    hang_s: float = 3.0
    retry_s: float = 0.2
    retry_most_s: float = 5.0
    log_path: str = ""

    def __post_init__(self) -> None:
        host, _, port = self.master.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise InvalidParams(f"master must be host:port, got {self.master!r}")
        for name in ("metadata", "local_hostname", "protocol"):
            if not getattr(self, name):
                raise InvalidParams(f"{name} must not be empty")
        for name, least in _LEAST.items():
            if not getattr(self, name) >= least:
                raise InvalidParams(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.retry_most_s < self.retry_s:
            raise InvalidParams(
                f"retry_most_s must be at least retry_s, got {self.retry_most_s} < {self.retry_s}"
            )

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the master."""
        host, _, port = self.master.rpartition(":")
        return host.strip("[]"), int(port)

    def as_dict(self) -> dict[str, str | int | float]:
        """Return all fields, for the client process."""
        return asdict(self)


_LEAST: dict[str, float] = {
    "arena_bytes": 2 << 20,
    "queue_bytes": 1 << 20,
    "queue_calls": 1,
    "batch_keys": 1,
    "workers": 1,
    "hang_s": 0.05,
    "retry_s": 0.01,
}


def require_mooncake() -> None:
    """Raise `MissingExtra` unless mooncake and xxhash are installed."""
    for module in ("mooncake", "xxhash"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(
                f"a Mooncake tier needs the package {module}, which is not installed: "
                'pip install "irminsul-kv[mooncake]" (GPU hosts with RDMA: '
                "mooncake-transfer-engine-cuda13 in place of mooncake-transfer-engine-non-cuda)"
            )
