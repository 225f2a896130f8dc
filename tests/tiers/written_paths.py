"""Rows and how they came about -> a leaf that a write-behind can read, and its end.

Knows nothing of what is kept of them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from irminsul.integrations.sglang.tree.nodes import set_record
from irminsul.integrations.sglang.tree.provenance import NodeRecord, Segment
from tiers.mooncake_store import until


def leaf(ids: list[int], segments: list[Segment]) -> Any:
    """Return a node under the root that holds `ids`."""
    key = type("Key", (list,), {"raw_token_ids": lambda key: list(key)})(ids)
    made = SimpleNamespace(key=key, value=torch.arange(len(ids)), parent="root")
    set_record(made, NodeRecord(0, max(segment.depth for segment in segments), segments))
    return made


def drained(writer: Any) -> bool:
    """Unlock what was copied until nothing is locked."""

    def unlocked() -> bool:
        writer.unlock(writer.copied)
        return not writer.locked_tokens

    return until(unlocked)
