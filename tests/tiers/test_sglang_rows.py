"""Rows from host memory end up as the pool's own copy would have put them, bit for bit."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from irminsul import Namespace
from irminsul.integrations.sglang.spans import HostCopy
from irminsul.integrations.sglang.tiers import identity
from irminsul.integrations.sglang.tiers import rows as tiers_rows
from irminsul.integrations.sglang.tiers.rows import HostRows
from irminsul.rotation import RopeTable, relocate_rows
from irminsul.tiers import ChunkRows, ChunkSpace, HostTier

LAYERS, SLOTS = 3, 700


def _table(positions: int = 4096) -> RopeTable:
    angles = torch.arange(positions)[:, None] * (10000.0 ** (-torch.arange(32) / 32.0))
    return RopeTable(torch.cat([angles.cos(), angles.sin()], dim=1).float(), interleaved=True)


def _layers(seed: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(SLOTS, 1, 576, generator=generator).to(dtype) for _ in range(LAYERS)]


def _no_room_for_two(tensors: list[torch.Tensor], dim: int = 0) -> torch.Tensor:
    """Stand for a GPU whose memory is full: what needs more than one chunk does not fit."""
    if len(tensors) > 1:
        raise torch.OutOfMemoryError("CUDA out of memory")
    return tensors[0].clone()


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_host_rows_equal_relocated_rows(
    dtype: torch.dtype, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers_rows, "_GROUP_TOKENS", 150)
    layers, table = _layers(1, dtype), _table()
    space = ChunkSpace(Namespace(), identity.row_layout(layers, 0))
    tier = HostTier(8 << 20)
    random = np.random.default_rng(0)
    pieces, source, deltas = [], [], []
    # Chunk, first row and count that are used of it, distance.
    for start, size, first, count, delta in (
        (0, 90, 0, 90, 17),
        (90, 64, 10, 40, 17),
        (200, 128, 0, 128, -33),
        (350, 70, 5, 1, 0),
    ):
        ref = space.ref(random.integers(0, 9, size))
        rows = torch.stack([layer[start : start + size, 0] for layer in layers])
        content = rows.contiguous().view(torch.uint8).numpy()
        tier.put([ChunkRows(ref, start, 0, 0, content)])
        lease = tier.lease(ref)
        assert lease is not None
        pieces.append((HostRows(lease), first, count))
        source.append(np.arange(start + first, start + first + count))
        deltas.append(np.full(count, delta))
    where, distance = np.concatenate(source), torch.from_numpy(np.concatenate(deltas))
    target = torch.from_numpy(430 + random.permutation(len(where)))
    expected = [layer.clone() for layer in layers]
    relocate_rows(expected, torch.from_numpy(where), target, distance, table)
    if full:
        monkeypatch.setattr(tiers_rows.torch, "cat", _no_room_for_two)
    tiers_rows.write(HostCopy(tuple(pieces), target, distance), layers, table)
    for ours, theirs in zip(layers, expected, strict=True):
        assert torch.equal(ours, theirs)


def test_layouts_tell_dtypes_and_stages_apart() -> None:
    layouts = {
        identity.row_layout(_layers(0, dtype), first)
        for dtype in (torch.bfloat16, torch.float32)
        for first in (0, 3)
    }
    assert len(layouts) == 4
    layout = identity.row_layout(_layers(0, torch.bfloat16), 0)
    assert (layout.layers, layout.row_bytes) == (LAYERS, 1152)


def _model(scale: float = 1.0) -> torch.nn.Module:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(300, 70), torch.nn.Linear(70, 3, bias=False))
    for parameter in model.parameters():
        parameter.data *= scale
    return model.to(torch.bfloat16)


def test_the_weights_digest_tells_models_apart() -> None:
    digest = identity.weights_digest(_model())
    assert digest == identity.weights_digest(_model())
    assert digest != identity.weights_digest(_model(1.01))
    assert digest != identity.weights_digest(_model().float())
    renamed = torch.nn.Sequential(torch.nn.Identity(), *_model())
    assert digest != identity.weights_digest(renamed)
    assert digest != identity.weights_digest(SimpleNamespace(named_parameters=lambda: []))


def test_the_rope_digest_tells_rotations_apart() -> None:
    table = _table()
    other = RopeTable(table.cos_sin, interleaved=False)
    angles = torch.arange(4096)[:, None] * (50000.0 ** (-torch.arange(32) / 32.0))
    stretched = RopeTable(torch.cat([angles.cos(), angles.sin()], dim=1).float(), True)
    digests = {identity.rope_digest(t) for t in (table, _table(), other, stretched)}
    assert len(digests) == 3
