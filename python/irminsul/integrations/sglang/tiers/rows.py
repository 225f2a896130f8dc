"""Rows in host memory <-> slots of the KV pool, on their way there turned to their new positions.

Knows tensors, slots and one rotation; must not know requests, batches or where chunks come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from irminsul.integrations.sglang.spans import HostCopy
from irminsul.rotation import ROPE_DIM, RopeTable, rotate
from irminsul.tiers import Lease

# Rows of one copy: bounds the device memory that is needed on the way, to about three times theirs.
_GROUP_TOKENS = 2048


class HostRows:
    """Stands in a `Span` where a tree node would: rows that lie in host memory.

    Parameters
    ----------
    lease : Lease
        Keeps the rows where they are for as long as a plan names them.
    """

    # What tells it from a tree node.
    on_host = True

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.key = lease.chunk.ref.key
        # Tells it from other chunks in a digest of numbers.
        self.number = int.from_bytes(self.key[:7], "little")

    def tensor(self, dtype: torch.dtype) -> Tensor:
        """Return the rows, [layers, tokens, row], a view of host memory."""
        return torch.from_numpy(self.lease.chunk.rows).view(dtype)


def to_host(layers: Sequence[Tensor], index: Tensor, stream: Any) -> NDArray[np.uint8]:
    """Return rows of a KV pool, [layers, n, bytes of a row], in host memory.

    Parameters
    ----------
    layers : sequence of Tensor, [slots, 1, row]
        The pool's KV buffers.
    index : Tensor, int64, [n]
        Slots, on the pool's device.
    stream : torch.cuda.Stream, optional
        The current one, which is waited for; None on a CPU.
    """
    rows = torch.stack([layer[index, 0] for layer in layers])
    if stream is not None:
        pinned = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
        pinned.copy_(rows, non_blocking=True)
        stream.synchronize()
        rows = pinned
    found: NDArray[np.uint8] = rows.view(torch.uint8).numpy()
    return found


def write(copy: HostCopy, layers: Sequence[Tensor], table: RopeTable) -> None:
    """Copy the rows of `copy` to their slots in every layer, c_KV verbatim and k_r turned.

    Parameters
    ----------
    copy : HostCopy
        What to copy; its leases must be held until the device has done it.
    layers : sequence of Tensor, [slots, 1, row]
        The pool's KV buffers.
    table : RopeTable
        The model's rotation, on the pool's device.
    """
    first = 0
    for group in _groups(copy.pieces, _GROUP_TOKENS):
        tokens = sum(count for _, _, count in group)
        part = slice(first, first + tokens)
        try:
            _write_group(group, copy.target_slots[part], copy.deltas[part], layers, table)
        except torch.OutOfMemoryError:
            # The batch is trimmed already, so it cannot run without: give back what the allocator
            # keeps for later, and go on with as little at once as there is.
            torch.cuda.empty_cache()
            at = first
            for piece in group:
                one = slice(at, at + piece[2])
                _write_group([piece], copy.target_slots[one], copy.deltas[one], layers, table)
                at += piece[2]
        first += tokens


def _write_group(
    group: Sequence[tuple[HostRows, int, int]],
    target: Tensor,
    deltas: Tensor,
    layers: Sequence[Tensor],
    table: RopeTable,
) -> None:
    """Write pieces to the slots `target`; a second time does no harm."""
    device, dtype = layers[0].device, layers[0].dtype
    rows = torch.cat([_on_device(piece, device, dtype) for piece in group], dim=1)
    _turn(rows, deltas, table)
    for layer, content in zip(layers, rows, strict=True):
        layer[target, 0] = content


def _groups(
    pieces: Sequence[tuple[HostRows, int, int]], most_tokens: int
) -> Iterator[list[tuple[HostRows, int, int]]]:
    group: list[tuple[HostRows, int, int]] = []
    tokens = 0
    for piece in pieces:
        if group and tokens + piece[2] > most_tokens:
            yield group
            group, tokens = [], 0
        group.append(piece)
        tokens += piece[2]
    if group:
        yield group


def _on_device(
    piece: tuple[HostRows, int, int], device: torch.device, dtype: torch.dtype
) -> Tensor:
    """Return the piece's rows on `device`.

    A chunk is one block of memory: copying it whole is one transfer, and cutting it in front of the
    copy would make torch gather it on the host first.
    """
    rows, offset, count = piece
    whole = rows.tensor(dtype).to(device, non_blocking=True)
    return whole[:, offset : offset + count]


def _turn(rows: Tensor, deltas: Tensor, table: RopeTable) -> None:
    """Turn k_r of rows [layers, n, row] in place, run by run: a run shares one delta."""
    edges = [0, *(torch.nonzero(deltas.diff()).flatten() + 1).tolist(), len(deltas)]
    for start, end in pairwise(edges):
        delta = int(deltas[start])
        if delta:
            # An int, not a tensor: a tensor of deltas on a GPU is checked there, which waits.
            k_r = rows[:, start:end, -ROPE_DIM:]
            rows[:, start:end, -ROPE_DIM:] = rotate(k_r.contiguous(), delta, table)
