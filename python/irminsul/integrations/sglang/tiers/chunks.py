"""Settings and the rows of a KV pool -> the chunks that are kept of them beyond it.

Must not know requests, trees or schedulers.
"""

from __future__ import annotations

from typing import Any

import torch

from irminsul import ChunkParams, Policy
from irminsul.errors import Unsupported
from irminsul.integrations.sglang.settings import Settings, store_fields
from irminsul.integrations.sglang.tiers import identity
from irminsul.tiers import ChunkPool, CostModel, MooncakeSettings, MooncakeTier

__all__ = ["chunk_pool"]

_DEFAULT_HOST_BYTES = 1 << 30
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def chunk_pool(
    pool: Any,
    settings: Settings,
    cost: CostModel,
    params: ChunkParams,
    policy: Policy,
    *,
    publishes: bool,
) -> ChunkPool:
    """Return host memory for rows of `pool`, before a Mooncake Store where one is named.

    Parameters
    ----------
    pool
        SGLang's MLA KV pool.
    settings
        How much memory, and where the store is.
    cost, params, policy, publishes
        See `ChunkPool`.

    Raises
    ------
    Unsupported
        The pool's rows cannot be turned on their way from host memory.
    MissingExtra, InvalidParams
        A store is named and cannot be used as named.
    """
    rows = pool.kv_buffer[0]
    if rows.dtype not in _DTYPES:
        raise Unsupported(
            f"rows of {rows.dtype} cannot leave the KV pool yet: unset "
            "IRMINSUL_HOST_BYTES and IRMINSUL_POOL_MASTER, or use a bfloat16 KV cache."
        )
    return ChunkPool(
        identity.row_layout(pool.kv_buffer, int(getattr(pool, "start_layer", 0) or 0)),
        settings.host_bytes or _DEFAULT_HOST_BYTES,
        _store(settings, cost),
        cost,
        params=params,
        policy=policy,
        pinned=rows.device.type == "cuda",
        publishes=publishes,
    )


def _store(settings: Settings, cost: CostModel) -> MooncakeTier | None:
    if not settings.pool_master:
        return None
    where = MooncakeSettings(**store_fields(settings))
    return MooncakeTier(where, cost.transferred)
