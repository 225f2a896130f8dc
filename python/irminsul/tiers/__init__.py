"""Chunks of KV rows beyond one engine's pool: host memory, and a store that hosts share.

Must not import torch, mooncake or an engine when it is imported.
"""

from irminsul.tiers.base import Collected, Counts, Receive, Tier
from irminsul.tiers.cost import Candidate, CostModel, Speeds
from irminsul.tiers.host import HostTier
from irminsul.tiers.index import HostSpan
from irminsul.tiers.keys import ChunkRef, ChunkSpace, RowLayout
from irminsul.tiers.lease import Lease
from irminsul.tiers.mooncake import MooncakeSettings, MooncakeTier
from irminsul.tiers.pool import ChunkPool
from irminsul.tiers.prefetch import Prefetch, Wanted
from irminsul.tiers.ticket import Ticket
from irminsul.tiers.value import ChunkRows, Rejected

__all__ = [
    "Candidate",
    "ChunkPool",
    "ChunkRef",
    "ChunkRows",
    "ChunkSpace",
    "Collected",
    "CostModel",
    "Counts",
    "HostSpan",
    "HostTier",
    "Lease",
    "MooncakeSettings",
    "MooncakeTier",
    "Prefetch",
    "Receive",
    "Rejected",
    "RowLayout",
    "Speeds",
    "Ticket",
    "Tier",
    "Wanted",
]
