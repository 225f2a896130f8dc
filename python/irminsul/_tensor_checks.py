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
    if len(layers) == 0:
        raise InvalidTensor("layers is empty")
    first = layers[0]
    if first.dtype in FP8_STORAGE:
        if not allow_fp8:
            raise Unsupported(
                f"rows are {first.dtype}: turning fp8 keys quantises them again; pass "
                "allow_fp8=True to accept it"
            )
    elif first.dtype not in ROTATABLE:
        raise InvalidTensor(f"layers must be bfloat16, float16, float32 or e4m3, got {first.dtype}")
    for number, layer in enumerate(layers):
        shape = tuple(layer.shape)
        if shape not in ((first.shape[0], 1, ROW_DIM), (first.shape[0], ROW_DIM)):
            raise InvalidTensor(
                f"layer {number} is {list(shape)}; {[first.shape[0], 1, ROW_DIM]} is needed"
            )
        if layer.dtype != first.dtype or layer.device != first.device:
            raise InvalidTensor(
                f"layer {number} is {layer.dtype} on {layer.device}, layer 0 is {first.dtype} on "
                f"{first.device}"
            )
        if layer.stride(-1) != 1 or (shape[0] > 1 and layer.stride(0) < ROW_DIM):
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
    if index.dtype not in dtypes or index.ndim != 1 or index.shape != shape:
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise InvalidTensor(
            f"{name} must be {wanted} [{shape[0] if len(shape) == 1 else 'n'}], "
            f"got {index.dtype} {list(index.shape)}"
        )
    require_device(name, index, device)


def require_device(name: str, tensor: Tensor, device: torch.device) -> None:
    if tensor.device != device:
        raise InvalidTensor(f"{name} is on {tensor.device}, the rows are on {device}")
