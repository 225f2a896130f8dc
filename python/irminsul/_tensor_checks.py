"""Tensors that a caller passes -> nothing, or a typed error that says what is wrong with them.

Knows shapes, dtypes, strides and devices; never reads a value, so it never waits for a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from irminsul._rotation_reference import FP8_STORAGE, ROW_DIM
from irminsul.errors import InvalidTensor, Unsupported

ROTATABLE = (torch.bfloat16, torch.float16, torch.float32)
"""Dtypes whose numbers are turned in fp32 and rounded once."""


def check_layers(layers: Sequence[Tensor], allow_fp8: bool) -> None:
    """Check that all layers are alike, hold whole rows, and are of a dtype that can be turned."""
    if len(layers) == 0:
        raise InvalidTensor("layers is empty")
    first = layers[0]
    _check_layer(first, first, 0, allow_fp8)
    shape, strides, dtype, device = first.shape, first.stride(), first.dtype, first.device
    for number, layer in enumerate(layers):
        # Buffers of an engine are all alike; only the others are worth a closer look. This runs
        # once per layer in every call, before the GPU has anything to do.
        if not (
            layer.shape == shape
            and layer.stride() == strides
            and layer.dtype is dtype
            and layer.device == device
        ):
            _check_layer(layer, first, number, allow_fp8)


def _check_layer(layer: Tensor, first: Tensor, number: int, allow_fp8: bool) -> None:
    if layer.dtype in FP8_STORAGE:
        if not allow_fp8:
            raise Unsupported(
                f"rows are {layer.dtype}: turning fp8 keys quantises them again; pass "
                "allow_fp8=True to accept it"
            )
    elif layer.dtype not in ROTATABLE:
        raise InvalidTensor(f"layers must be bfloat16, float16, float32 or e4m3, got {layer.dtype}")
    slots = first.shape[0] if first.ndim else 0
    if tuple(layer.shape) not in ((slots, 1, ROW_DIM), (slots, ROW_DIM)):
        raise InvalidTensor(
            f"layer {number} is {list(layer.shape)}; {[slots, 1, ROW_DIM]} is needed"
        )
    if layer.dtype != first.dtype or layer.device != first.device:
        raise InvalidTensor(
            f"layer {number} is {layer.dtype} on {layer.device}, layer 0 is {first.dtype} on "
            f"{first.device}"
        )
    if layer.stride(-1) != 1 or (slots > 1 and layer.stride(0) < ROW_DIM):
        raise InvalidTensor(
            f"layer {number} has strides {layer.stride()}: a row's numbers must be adjacent "
            "and rows must not overlap"
        )


def check_index(
    name: str,
    index: Tensor,
    dtypes: tuple[torch.dtype, ...],
    shape: torch.Size,
    device: torch.device,
) -> None:
    """Raise `InvalidTensor` unless `index` is one of `dtypes`, of `shape`, and on `device`."""
    if not isinstance(index, Tensor):
        raise InvalidTensor(f"{name} must be a tensor, got {type(index).__name__}")
    if index.dtype not in dtypes or index.ndim != 1 or index.shape != shape:
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise InvalidTensor(
            f"{name} must be {wanted} [{shape[0] if len(shape) == 1 else 'n'}], "
            f"got {index.dtype} {list(index.shape)}"
        )
    require_device(name, index, device)


def require_device(name: str, tensor: Tensor, device: torch.device) -> None:
    """Raise `InvalidTensor` unless `tensor` is where the rows are."""
    if tensor.device != device:
        raise InvalidTensor(f"{name} is on {tensor.device}, the rows are on {device}")
