"""Runs of tokens -> slots, positions and deltas of each token, in one kernel.

Knows torch's pointers and streams and the C ABI; must not know batches, plans or trees.
"""

from __future__ import annotations

import ctypes
from array import array

import torch
from torch import Tensor

from irminsul.native import abi, loader

RUN = ctypes.sizeof(abi.SpanRun) // 8
"""Numbers of one run, see `write_spans`."""


def can_write(slots: Tensor) -> bool:
    """Return whether `write_spans` runs where `slots` are, as this thread stands."""
    device = slots.get_device()  # -1 on the CPU; what torch says in more words costs microseconds
    return device >= 0 and device == torch._C._cuda_getDevice() and loader.supports_device(device)


def write_spans(runs: array[int], computed: int, moved: int, slots: Tensor) -> Tensor:
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
    slots : Tensor, int64
        Any on the device that owns every address; `can_write` has accepted it.

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
    numbers = slots.new_empty(2 * computed + 3 * moved)
    address, length = runs.buffer_info()
    params = abi.SpansParams(
        runs=address,
        numbers=numbers.data_ptr(),
        num_computed=computed,
        num_moved=moved,
        stream=torch._C._cuda_getCurrentRawStream(numbers.get_device()),
        num_runs=length // RUN,
    )
    abi.check(handle, handle.irm_write_spans(ctypes.byref(params)), "write_spans")
    return numbers
