"""A chunk pool and a cost model -> gauges and counters, at most once a second.

Must not know requests, trees or tensors.
"""

from __future__ import annotations

from irminsul.integrations.sglang.metrics import Metrics
from irminsul.tiers import ChunkPool, CostModel

__all__ = ["publish"]


def publish(chunks: ChunkPool, cost: CostModel, metrics: Metrics) -> None:
    """Publish what the tiers count themselves, if it is due."""
    if not metrics.due("tiers"):
        return
    host, remote = chunks.host, chunks.remote
    metrics.gauge("tier_host_bytes", host.used_bytes)
    metrics.gauge("tier_link_bytes_per_second", cost.speeds.link_bytes_per_s)
    metrics.events("host", host.counts.snapshot())
    if remote is not None:
        metrics.gauge("tier_store_up", float(getattr(remote, "up", True)))
        metrics.events("store", remote.counts.snapshot())
