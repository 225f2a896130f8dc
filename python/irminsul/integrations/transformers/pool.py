"""Pages of token slots, and the KV rows of every layer that lie in them.

Must not know token ids, plans or models' modules.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from irminsul.attention import PAGE_SIZE
from irminsul.integrations.transformers.family import Family
from irminsul.rotation import ROW_DIM, relocate_rows

__all__ = ["LatentRows", "Pages", "Rows", "WholeKeyRows", "make_rows"]


class Pages:
    """Free pages of `PAGE_SIZE` token slots.

    Parameters
    ----------
    count : int
        How many there are.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))

    @property
    def free(self) -> int:
        """Pages that nobody owns."""
        return len(self._free)

    def take(self, count: int) -> list[int] | None:
        """Hand out pages, or None when there are too few."""
        if count > len(self._free):
            return None
        return [self._free.pop() for _ in range(count)]

    def give(self, pages: list[int]) -> None:
        """Take pages back."""
        self._free.extend(reversed(pages))


class Rows(Protocol):
    """KV rows of all layers."""

    def move(self, source: Tensor, target: Tensor, rotation: Tensor) -> None:
        """Copy rows of all layers to other slots, their keys turned by `rotation` positions.

        Parameters
        ----------
        source, target : Tensor, int64, [n]
            Slots; no target is a source.
        rotation : Tensor, int64, [n]
            Positions to turn by; 0 copies the bits.
        """

    def read(self, layer: int, slots: Tensor) -> Tensor:
        """Rows of one layer as one matrix, [n, numbers per row]."""

    def write(self, layer: int, slots: Tensor, rows: Tensor) -> None:
        """Put rows as `read` gives them."""


class LatentRows:
    """Rows ``[c_KV | k_r]`` of 576 numbers.

    Attributes
    ----------
    layers : list of Tensor, dtype of the model, [num_pages, 64, 576]
    """

    def __init__(self, family: Family, pages: int) -> None:
        self.table = family.table()
        self.layers = [_zeros((pages, PAGE_SIZE, ROW_DIM), family) for _ in family.attentions]

    def move(self, source: Tensor, target: Tensor, rotation: Tensor) -> None:
        """See `Rows.move`."""
        flat = [layer.view(-1, ROW_DIM) for layer in self.layers]
        relocate_rows(flat, source, target, rotation, self.table)

    def read(self, layer: int, slots: Tensor) -> Tensor:
        """See `Rows.read`."""
        return self.layers[layer].view(-1, ROW_DIM)[slots]

    def write(self, layer: int, slots: Tensor, rows: Tensor) -> None:
        """See `Rows.write`."""
        self.layers[layer].view(-1, ROW_DIM)[slots] = rows


class WholeKeyRows:
    """Keys and values of all KV heads of a GQA or MHA model.

    Attributes
    ----------
    keys, values : list of Tensor, dtype of the model, [slots, num_kv_heads, head_dim]
    """

    def __init__(self, family: Family, pages: int) -> None:
        shape = (pages * PAGE_SIZE, family.num_kv_heads, family.head_dim)
        self._angles = family.angles
        self._shape = shape[1:]
        self.keys = [_zeros(shape, family) for _ in family.attentions]
        self.values = [_zeros(shape, family) for _ in family.attentions]

    def move(self, source: Tensor, target: Tensor, rotation: Tensor) -> None:
        """See `Rows.move`."""
        for keys, values in zip(self.keys, self.values, strict=True):
            keys[target] = turn_keys(keys[source], rotation, self._angles)
            values[target] = values[source]

    def read(self, layer: int, slots: Tensor) -> Tensor:
        """See `Rows.read`."""
        both = (self.keys[layer][slots], self.values[layer][slots])
        return torch.cat([part.flatten(1) for part in both], dim=1)

    def write(self, layer: int, slots: Tensor, rows: Tensor) -> None:
        """See `Rows.write`."""
        keys, values = rows.view(len(slots), 2, *self._shape).unbind(1)
        self.keys[layer][slots] = keys
        self.values[layer][slots] = values


def _zeros(shape: tuple[int, ...], family: Family) -> Tensor:
    return torch.zeros(shape, dtype=family.dtype, device=family.device)


def turn_keys(keys: Tensor, rotation: Tensor, angles: Tensor) -> Tensor:
    """Turn whole keys by some positions: fp32 arithmetic, one rounding, 0 copies the bits.

    Parameters
    ----------
    keys : Tensor, floating, [n, heads, head_dim]
        Rotary pairs are ``(i, i + head_dim / 2)``.
    rotation : Tensor, int64, [n]
        Signed positions.
    angles : Tensor, float32, [max_positions, head_dim]
        ``[cos | sin]`` by position.
    """
    cos, sin = angles[rotation.abs()][:, None, :].chunk(2, dim=-1)
    sin = sin * rotation.sign()[:, None, None]
    x, y = keys.float().chunk(2, dim=-1)
    turned = torch.cat([x * cos - y * sin, y * cos + x * sin], dim=-1).to(keys.dtype)
    return torch.where((rotation == 0)[:, None, None], keys, turned)


def make_rows(family: Family, pages: int) -> LatentRows | WholeKeyRows:
    """Allocate the rows that a model's layers need."""
    return LatentRows(family, pages) if family.latent else WholeKeyRows(family, pages)
