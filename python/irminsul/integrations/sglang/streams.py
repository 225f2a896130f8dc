"""Tensors made by the scheduler -> what the device and the stream of the model may read.

Plain tensors: must not know SGLang, batches or plans.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def to_device(host: Tensor, device: torch.device) -> Tensor:
    """Copy `host` to `device` without waiting for it."""
    if device.type == "cpu":
        return host
    return host.pin_memory().to(device, non_blocking=True)


def use_on_this_stream(tensors: Iterable[Tensor]) -> None:
    """Let the current stream read what was made on another.

    Without this the allocator could hand its memory out there again while this one still reads.
    """
    for tensor in tensors:
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
