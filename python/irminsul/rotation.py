"""Stored KV rows and position deltas -> the rows at their new positions.

Knows tensors, slots and one cos/sin table; must not know token ids, plans or a serving engine.

An MLA row is 512 numbers of c_KV, which hold no position, and 64 numbers of k_r under RoPE. Moving
a row from position ``s`` to ``t`` copies the first part and turns the second by ``delta = t - s``:
``R(t) x = R(t - s) R(s) x`` (RoFormer, arXiv 2104.09864, section 3.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from irminsul._rotation_reference import (
    ROPE_DIM,
    ROW_DIM,
    check_delta_range,
    delta_error,
    rotate_rows,
)
from irminsul._tensor_checks import ROTATABLE, check_index, check_layers, require_device
from irminsul.errors import InvalidParams, InvalidTensor, Unsupported
from irminsul.native.relocate import check_relocations

__all__ = [
    "ROPE_DIM",
    "ROW_DIM",
    "RopeTable",
    "check_relocations",
    "relocate_rows",
    "rotate",
]

_HALF = ROPE_DIM // 2


@dataclass(frozen=True, eq=False)
class RopeTable:
    """Rotation by every whole number of positions, as fp32 cosines and sines.

    Parameters
    ----------
    cos_sin : Tensor, float32, [max_positions, 64]
        Row ``p`` is ``[cos(p f_0) .. cos(p f_31) | sin(p f_0) .. sin(p f_31)]``, any YaRN mscale
        divided out. Row ``|delta|`` turns by ``delta``; the sine changes sign for negative ones.
    interleaved : bool
        True when number ``2i`` of k_r is turned with ``2i + 1`` (DeepSeek, GPT-J); False when
        number ``i`` is turned with ``i + 32`` (half-split, NeoX).

    Raises
    ------
    InvalidTensor
        ``cos_sin`` is not a contiguous float32 tensor of that shape.
    InvalidParams
        A row is not a pure rotation: mscale was left in, or a value is not finite.
    Unsupported
        The rows are not the powers of one rotation (dynamic NTK, LongRoPE): then one delta does
        not move a key, whatever its position.
    """

    cos_sin: Tensor
    interleaved: bool

    def __post_init__(self) -> None:
        table = self.cos_sin
        if table.dtype != torch.float32 or table.ndim != 2 or table.shape[1] != ROPE_DIM:
            raise InvalidTensor(
                f"cos_sin must be float32 [max_positions, {ROPE_DIM}], "
                f"got {table.dtype} {list(table.shape)}"
            )
        if table.shape[0] == 0 or not table.is_contiguous():
            raise InvalidTensor("cos_sin must be contiguous and hold at least position 0")
        _check_pure_rotation(table)
        _check_one_generator(table)

    @classmethod
    def from_model_cache(
        cls, cos_sin_cache: Tensor, mscale: float | None = None, *, interleaved: bool
    ) -> RopeTable:
        """Build the table from the cache of a model's rotary module.

        Parameters
        ----------
        cos_sin_cache : Tensor, float32, [max_positions, 64]
            The module's ``[cos | sin]``, scaled by the module's mscale as YaRN does.
        mscale : float, optional
            That factor. By default it is read from the cache: position 0 has cosine ``mscale``.
        interleaved : bool
            The pairing that the model uses; never guessed.

        Returns
        -------
        RopeTable
            On the cache's device. The cache itself is not changed.

        Raises
        ------
        InvalidTensor
            Wrong shape, or not float32. A cache cast to the model's dtype has lost the angles;
            compute it again in float32 (SGLang: ``_compute_cos_sin_cache()``).
        InvalidParams
            ``mscale`` is not a positive finite number, or dividing by it leaves no rotation.
        """
        if cos_sin_cache.dtype != torch.float32:
            raise InvalidTensor(
                f"the model's cos/sin cache is {cos_sin_cache.dtype}; float32 is needed, because "
                "a rounded cache has lost the angles of large positions: compute it again"
            )
        if cos_sin_cache.ndim != 2 or 0 in cos_sin_cache.shape:
            raise InvalidTensor(f"cos_sin_cache must be 2-D, got {list(cos_sin_cache.shape)}")
        scale = float(cos_sin_cache[0, 0]) if mscale is None else float(mscale)
        if not 0.0 < scale < float("inf"):
            raise InvalidParams(f"mscale must be a positive finite number, got {scale}")
        table = cos_sin_cache.detach().clone() if scale == 1.0 else cos_sin_cache.detach() / scale
        return cls(table.contiguous(), interleaved)

    @property
    def max_positions(self) -> int:
        """Number of rows; deltas reach from ``-(max_positions - 1)`` to ``max_positions - 1``."""
        return int(self.cos_sin.shape[0])

    def to(self, device: torch.device | str | int) -> RopeTable:
        """Return this table on ``device`` (itself when it is there already)."""
        moved = self.cos_sin.to(device)
        return self if moved is self.cos_sin else RopeTable(moved, self.interleaved)


def rotate(k_r: Tensor, delta: int | Tensor, table: RopeTable) -> Tensor:
    """Turn k_r by ``delta`` positions: fp32 arithmetic, one rounding to the dtype of ``k_r``.

    Parameters
    ----------
    k_r : Tensor, bfloat16 | float16 | float32, [..., 64]
        Keys under RoPE.
    delta : int or integer Tensor broadcastable to ``k_r.shape[:-1]``
        Target position minus source position, in tokens.
    table : RopeTable
        On the device of ``k_r``.

    Returns
    -------
    Tensor, shape and dtype of ``k_r``
        Where delta is 0, the input's very bits.

    Raises
    ------
    DeltaOutOfRange
        ``|delta|`` is not below ``table.max_positions``. (A tensor of deltas on a GPU is checked
        there, so this call waits for the device; `relocate_rows` does not.)
    InvalidTensor
        Wrong shape, dtype or device.

    Examples
    --------
    >>> import torch
    >>> angles = torch.arange(8.0)[:, None] * torch.ones(32)
    >>> table = RopeTable(torch.cat([angles.cos(), angles.sin()], dim=1), interleaved=True)
    >>> k_r = torch.zeros(64)
    >>> k_r[0] = 1.0
    >>> rotate(k_r, 1, table)[:2]
    tensor([0.5403, 0.8415])
    """
    if k_r.dtype not in ROTATABLE or k_r.ndim == 0 or k_r.shape[-1] != ROPE_DIM:
        raise InvalidTensor(
            f"k_r must be bfloat16, float16 or float32 [..., {ROPE_DIM}], "
            f"got {k_r.dtype} {list(k_r.shape)}"
        )
    require_device("table", table.cos_sin, k_r.device)
    deltas = _checked_delta(delta, k_r, table)
    return rotate_rows(k_r, deltas, table.cos_sin, table.interleaved)


def relocate_rows(
    layers: Sequence[Tensor],
    source_slots: Tensor,
    target_slots: Tensor,
    deltas: Tensor,
    table: RopeTable,
    *,
    allow_fp8: bool = False,
) -> None:
    """Copy KV rows to other slots of every layer, c_KV verbatim and k_r turned by its delta.

    Parameters
    ----------
    layers : sequence of Tensor, [slots, 1, 576] or [slots, 576]
        One KV buffer per layer, all on one device, of one dtype and one number of slots; changed
        in place. Any row stride; the 576 numbers of a row are adjacent. bfloat16, float16 or
        float32; with ``allow_fp8`` also float8_e4m3fn, or uint8 holding its bytes.
    source_slots, target_slots : Tensor, int64, [n]
        Row ``i`` is read at ``source_slots[i]`` and written at ``target_slots[i]``. No target may
        be a source or appear twice; a source may feed many targets.
    deltas : Tensor, int64 or int32, [n]
        Target position minus source position of each row, in tokens.
    table : RopeTable
        On the layers' device.
    allow_fp8 : bool
        Turning an e4m3 key quantises it once more (about 2**-4 relative), so it must be asked for.

    Raises
    ------
    OverlappingSlots, InvalidSlots, DeltaOutOfRange
        The slots or deltas break the rules above. Nothing is written then, in any layer.
    InvalidTensor
        Wrong shape, dtype, stride or device.
    Unsupported
        fp8 rows without ``allow_fp8``.

    Notes
    -----
    On an H100 or H200, bfloat16 and fp8 rows of all layers move in one launch on torch's current
    stream, without a host synchronisation, under ``torch.compile`` and in CUDA graphs alike (call
    it once before capturing). Elsewhere plain torch does the same, bit for bit.

    On such a GPU the values of slots and deltas are known to the device alone when the call
    returns, so an error in them is raised later, by the next call on that GPU or by
    `check_relocations`. Errors in shapes, dtypes and devices are raised at once everywhere.
    """
    check_layers(layers, allow_fp8)
    shape = source_slots.shape if isinstance(source_slots, Tensor) else torch.Size()
    for name, index in (("source_slots", source_slots), ("target_slots", target_slots)):
        check_index(name, index, (torch.int64,), shape, layers[0].device)
    check_index("deltas", deltas, (torch.int64, torch.int32), shape, layers[0].device)
    require_device("table", table.cos_sin, layers[0].device)
    if source_slots.numel() == 0:
        return
    torch.ops.irminsul.relocate_rows(
        list(layers), source_slots, target_slots, deltas, table.cos_sin, table.interleaved
    )


def _check_pure_rotation(table: Tensor) -> None:
    """Every row has norm 1 per pair, and position 0 turns nothing."""
    norm = table[:, :_HALF].square() + table[:, _HALF:].square()
    worst = float((norm - 1.0).abs().amax())
    if not worst <= 1e-5:
        raise InvalidParams(
            f"cos_sin is no pure rotation: cos^2 + sin^2 differs from 1 by {worst:.3g} "
            "(allowed: 1e-5); divide YaRN's mscale out"
        )
    if bool((table[0, :_HALF] != 1.0).any()) or bool((table[0, _HALF:] != 0.0).any()):
        raise InvalidParams("row 0 of cos_sin must be cos 1 and sin 0")


def _check_one_generator(table: Tensor) -> None:
    """Each row is the one before it, turned once more: R(p + 1) = R(p) R(1)."""
    if table.shape[0] < 2:
        return
    cos, sin = table[:, :_HALF], table[:, _HALF:]
    step_cos = cos[:-1] * cos[1] - sin[:-1] * sin[1]
    step_sin = sin[:-1] * cos[1] + cos[:-1] * sin[1]
    error = torch.maximum((step_cos - cos[1:]).abs(), (step_sin - sin[1:]).abs()).amax(dim=1)
    # An fp32 angle p f with f <= 1 is off by up to half its last place: 2**-24 p, at both ends.
    position = torch.arange(1, table.shape[0], device=table.device)
    allowed = 2e-6 + position * 2.0**-22
    if bool((error > allowed).any()):
        first = int((error > allowed).nonzero()[0])
        raise Unsupported(
            f"position {first + 1} of cos_sin is not position {first} turned once more: rotary "
            "scaling whose frequencies depend on the position cannot be moved by one delta"
        )


def _checked_delta(delta: int | Tensor, k_r: Tensor, table: RopeTable) -> Tensor:
    if isinstance(delta, bool) or not isinstance(delta, int | Tensor):
        raise InvalidTensor(f"delta must be an int or an integer tensor, got {type(delta)}")
    if isinstance(delta, int):
        if not abs(delta) < table.max_positions:
            raise delta_error(delta, delta, table.max_positions)
        return torch.full((), delta, dtype=torch.int64, device=k_r.device)
    if delta.dtype not in (torch.int64, torch.int32):
        raise InvalidTensor(f"delta must be int64 or int32, got {delta.dtype}")
    require_device("delta", delta, k_r.device)
    try:
        spread = delta.broadcast_to(k_r.shape[:-1])
    except RuntimeError:
        raise InvalidTensor(
            f"delta {list(delta.shape)} does not broadcast to {list(k_r.shape[:-1])}"
        ) from None
    check_delta_range(delta, table.max_positions)
    return spread
