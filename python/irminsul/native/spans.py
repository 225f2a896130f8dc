"""Runs of tokens -> slots, positions and deltas of each token, in one kernel.

Knows torch's pointers and streams and the C ABI; must not know batches, plans or trees.
"""

from __future__ import annotations

import ctypes
from array import array

import torch
from torch import Tensor

from irminsul.native import abi, loader

RUN = 5
"""Numbers of one run, see `write_spans`."""


def can_write(device: torch.device) -> bool:
    """Return whether `write_spans` runs on `device` as this thread stands."""
    if device.type != "cuda":
        return False
    current = torch.cuda.current_device()
    return device.index in (None, current) and loader.supports_device(current)


def write_spans(runs: array[int], computed: int, moved: int, device: torch.device) -> Tensor:
    """Enqueue what a planned batch has to know of each of its tokens; nothing is waited for.

    Parameters
    ----------
    runs : array("q") of ``RUN`` numbers a run
        Tokens that follow each other and are all computed or all moved: device address of the
        int64 slots they got; device address of the int64 slots to move from, 0 where they are
        computed; index of the first token among all computed or all moved ones; how many; and the
        first one's position, or the distance of all of them. No two runs share a token.
    computed, moved
        Number of tokens of either kind.
    device
        One that `can_write` has accepted; it owns every address.

    Returns
    -------
    Tensor, int64, [2 * computed + 3 * moved]
        Slots and positions of the tokens to compute, then source slots, target slots and deltas
        of the others.

    Raises
    ------
    InvalidParams
        A run is empty or beyond the number of tokens, or an address is none of an int64.
    CudaError
        The launch failed.
    """
    handle = loader.library()
    numbers = torch.empty(2 * computed + 3 * moved, dtype=torch.int64, device=device)
    address, length = runs.buffer_info()
    params = abi.SpansParams(
        runs=address,
        numbers=numbers.data_ptr(),
        num_computed=computed,
        num_moved=moved,
        stream=torch.cuda.current_stream().cuda_stream,
        num_runs=length // RUN,
    )
    abi.check(handle, handle.irm_write_spans(ctypes.byref(params)), "write_spans")
    return numbers
