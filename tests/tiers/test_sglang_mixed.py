"""Chunks in which moved and computed rows meet are shared; what was only moved, no second time."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the plugin's files import torch")

import torch
from irminsul import ChunkParams, Namespace, chunk
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.tiers import identity
from irminsul.integrations.sglang.tiers import writer as tiers_writer
from irminsul.integrations.sglang.tree.provenance import Segment
from irminsul.tiers import ChunkPool
from tiers.written_paths import drained, leaf

TOKENS = 1200
IDS = np.random.default_rng(0).integers(0, 1000, TOKENS)
SPACE = Namespace(model="m")


@pytest.fixture
def writer() -> Iterator[Any]:
    layers = [torch.arange(TOKENS, dtype=torch.float32).reshape(-1, 1, 1).repeat(1, 1, 2)]
    made = tiers_writer.WriteBehind(
        ChunkPool(identity.row_layout(layers, 0), 2 << 20),
        layers,
        SimpleNamespace(inc_lock_ref=lambda node: None, dec_lock_ref=lambda node: None),
        Metrics(60.0),
        most_tokens=4096,
        max_chunk=ChunkParams().max,
        max_hops=3,
        max_depth=8,
    )
    yield made
    made.close()


def _written(writer: Any, segments: list[Segment]) -> dict[int, tuple[int, int]]:
    """Note a path of these segments; return hops and depth of the chunks it leaves, by position."""
    writer.path(leaf(IDS.tolist(), segments), "root", SPACE, None)
    assert drained(writer)
    held = [entry.chunk for entry in writer._chunks.host._entries.values()]
    for part in held:
        assert np.array_equal(
            part.rows.view(np.float32)[0, :, 0],
            np.arange(part.base_position, part.base_position + len(part.ref.tokens)),
        )
    return {part.base_position: (part.hops, part.depth) for part in held}


def test_a_chunk_says_the_worst_of_its_rows(writer: Any) -> None:
    bounds = chunk(IDS).bounds.tolist()
    cut = bounds[3] + 20
    found = _written(writer, [Segment(cut, 1, 2, 1), Segment(TOKENS - cut, 0, 5, 2)])
    assert [found[start] for start in bounds[:3]] == [(1, 2)] * 3
    assert found[bounds[3]] == (1, 5)
    assert {found[start] for start in bounds[4:-2]} == {(0, 5)}


def test_too_many_rotations_and_unknown_rows_stay_here(writer: Any) -> None:
    bounds = chunk(IDS).bounds.tolist()
    parts = [Segment(bounds[2], 4, 1, 1), Segment(bounds[4] - bounds[2], 0, 0, None)]
    found = _written(writer, [*parts, Segment(TOKENS - bounds[4], 3, 1, 2)])
    assert sorted(found) == bounds[4:-2]


def test_what_was_only_moved_is_offered_once(writer: Any) -> None:
    moved = [Segment(TOKENS, 1, 1, 1)]
    assert len(_written(writer, moved)) > 4
    writer._chunks.clear()
    assert _written(writer, moved) == {}
    # Computed anew, it is worth more than what was there.
    assert len(_written(writer, [Segment(TOKENS, 0, 1, 1)])) > 4
    writer._chunks.clear()
    writer.reset()
    assert len(_written(writer, moved)) > 4
