"""Tensors of one `relocate_rows` call -> the library's kernels on torch's current stream.

Knows torch's pointers and streams and the C ABI; must not know what rotation means. It is the CUDA
backend of the operator ``irminsul::relocate_rows`` and hands what the kernels do not cover (other
GPUs, fp16 and fp32 rows, no library) to the torch reference.

The kernels check slots and deltas themselves, because asking the device would stall the stream. A
call that breaks a rule writes nothing, and the device leaves a note in pinned host memory. The next
call, or `check_relocations`, finds the note and raises.
"""

from __future__ import annotations

import ctypes
import threading

import torch
from torch import Tensor

from irminsul._rotation_reference import FP8_STORAGE, relocate_reference
from irminsul.errors import (
    DeltaOutOfRange,
    InvalidSlots,
    IrminsulError,
    OverlappingSlots,
)
from irminsul.native import abi, loader
from irminsul.native.abi import RelocateFault

__all__ = ["check_relocations", "relocate_cuda"]

_FAULTS: dict[int, tuple[type[IrminsulError], str]] = {
    RelocateFault.SOURCE_SLOT: (InvalidSlots, "source slot {value} is not a slot of the layers"),
    RelocateFault.TARGET_SLOT: (InvalidSlots, "target slot {value} is not a slot of the layers"),
    RelocateFault.DELTA: (DeltaOutOfRange, "delta {value} is beyond the table of positions"),
    RelocateFault.OVERLAP: (OverlappingSlots, "slot {value} is both a source and a target"),
    RelocateFault.TWICE: (OverlappingSlots, "target slot {value} appears twice"),
}


class _Mailbox:
    """Pinned memory of one GPU in which its kernels report faults."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        words = ctypes.sizeof(abi.RelocateReport) // 8
        self._memory = torch.zeros(words, dtype=torch.int64, pin_memory=True)
        self.address = self._memory.data_ptr()
        self._report = abi.RelocateReport.from_address(self.address)

    def raise_fault(self) -> None:
        """Raise what has been reported so far, once."""
        code = self._report.code
        if code == RelocateFault.NONE:
            return
        kind, text = _FAULTS[code]
        row, value = self._report.row, self._report.value
        self._report.code = RelocateFault.NONE
        raise kind(
            f"an earlier relocate_rows on {self.device} wrote nothing: "
            f"{text.format(value=value)} (row {row} of the call)"
        )


_mailboxes: dict[int, _Mailbox] = {}
_lock = threading.Lock()


def _mailbox(device: torch.device) -> _Mailbox:
    index = torch.cuda.current_device() if device.index is None else device.index
    box = _mailboxes.get(index)
    if box is None:
        with _lock:
            box = _mailboxes.setdefault(index, _Mailbox(torch.device("cuda", index)))
    return box


def check_relocations(device: torch.device | str | int | None = None, *, wait: bool = True) -> None:
    """Raise the fault of an earlier `relocate_rows` on a GPU, if there was one.

    Parameters
    ----------
    device : device, optional
        The GPU; the current one by default.
    wait : bool
        Wait for the work on the device first. False looks only at what it has reported so far,
        which costs no synchronisation: for a host that has just waited for results anyway.

    Raises
    ------
    OverlappingSlots, InvalidSlots, DeltaOutOfRange
        The call that is named wrote nothing, in any layer. Raised once.
    """
    if not torch.cuda.is_available():
        return
    where = torch.device("cuda" if device is None else device)
    if wait:
        torch.cuda.synchronize(where)
    _mailbox(where).raise_fault()


def relocate_cuda(
    layers: list[Tensor],
    source_slots: Tensor,
    target_slots: Tensor,
    deltas: Tensor,
    cos_sin: Tensor,
    interleaved: bool,
) -> None:
    """Enqueue the move on the current stream; falls back to the torch reference."""
    device = layers[0].device
    fp8 = layers[0].dtype in FP8_STORAGE
    covered = fp8 or layers[0].dtype == torch.bfloat16
    if not (covered and loader.supports_device(device.index)):
        relocate_reference(layers, source_slots, target_slots, deltas, cos_sin, interleaved)
        return
    box = _mailbox(device)
    box.raise_fault()
    with torch.cuda.device(device):
        _launch(layers, source_slots, target_slots, deltas, cos_sin, interleaved, fp8, box)


def _launch(
    layers: list[Tensor],
    source_slots: Tensor,
    target_slots: Tensor,
    deltas: Tensor,
    cos_sin: Tensor,
    interleaved: bool,
    fp8: bool,
    box: _Mailbox,
) -> None:
    handle = loader.library()
    count, number_bytes = len(layers), 1 if fp8 else 2
    slots = layers[0].shape[0]
    # Contiguous copies and scratch come from torch's allocator, so they live as long as the stream
    # (or the graph that captures this) needs them.
    indices = [index.contiguous() for index in (source_slots, target_slots, deltas)]
    size = handle.irm_relocate_workspace_bytes(slots)
    workspace = torch.empty(size, dtype=torch.uint8, device=layers[0].device)
    params = abi.RelocateParams(
        layer_addresses=(ctypes.c_uint64 * count)(*[layer.data_ptr() for layer in layers]),
        layer_strides=(ctypes.c_int64 * count)(
            *[layer.stride(0) * number_bytes for layer in layers]
        ),
        source_slots=indices[0].data_ptr(),
        target_slots=indices[1].data_ptr(),
        deltas=indices[2].data_ptr(),
        cos_sin=cos_sin.data_ptr(),
        num_rows=source_slots.numel(),
        num_slots=slots,
        num_positions=cos_sin.shape[0],
        workspace=workspace.data_ptr(),
        workspace_bytes=size,
        report=box.address,
        stream=torch.cuda.current_stream().cuda_stream,
        num_layers=count,
        row_format=abi.RowFormat.E4M3 if fp8 else abi.RowFormat.BF16,
        interleaved=int(interleaved),
        delta_bytes=deltas.element_size(),
    )
    abi.check(handle, handle.irm_relocate_rows(ctypes.byref(params)), "relocate_rows")


_BACKEND = torch.library.Library("irminsul", "IMPL")  # type: ignore[no-untyped-call]
_BACKEND.impl("relocate_rows", relocate_cuda, "CUDA")  # type: ignore[no-untyped-call]
