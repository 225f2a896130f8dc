"""A loaded model and its rotation -> the namespace that its rows have in a shared pool.

Must not know where a model came from: a path means something on one host only, and the same path
may hold other weights on the next.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import torch

from irminsul.rotation import RopeTable
from irminsul.tiers import RowLayout

# Numbers looked at of each parameter; evenly spread, so that a changed layer shows.
_SAMPLES = 64
# Fields of a configuration that say how it was made, not what it computes.
_PROVENANCE = ("name_or_path", "transformers_version")
_PROBED_POSITIONS = (1, 2, 3, 17, 1000, 4095)


def weights_digest(model: Any) -> str:
    """Return a digest of the configuration, and of all parameters as far as they are sampled.

    Parameters
    ----------
    model : torch.nn.Module
        As loaded: quantisation and the part of a tensor that this rank holds are part of it.

    Notes
    -----
    Of parameters: names, shapes, types and 64 numbers each. It tells models, revisions, fine-tunes
    and updated weights apart. It is no proof against someone who builds a model to collide.
    """
    digest = hashlib.blake2b(digest_size=16, person=b"irminsul.model")
    digest.update(_configuration(getattr(model, "config", None)))
    for name, parameter in sorted(model.named_parameters()):
        described = f"{name}|{parameter.dtype}|{list(parameter.shape)}".encode()
        digest.update(len(described).to_bytes(4, "little") + described)
        flat = parameter.detach().reshape(-1)
        if flat.numel() == 0:
            continue
        step = max(1, flat.numel() // _SAMPLES)
        digest.update(flat[::step][:_SAMPLES].contiguous().view(torch.uint8).cpu().numpy().data)
    return digest.hexdigest()


def _configuration(config: Any) -> bytes:
    """Return what a model's configuration says, without where it came from.

    Equal weights make other rows where, say, fewer experts are asked for each token.
    """
    fields = config.to_dict() if hasattr(config, "to_dict") else {}
    kept = {
        name: value
        for name, value in fields.items()
        if not name.startswith("_") and name not in _PROVENANCE
    }
    return json.dumps(kept, sort_keys=True, default=_plainly).encode()


def _plainly(value: Any) -> str:
    # The name of a type alone where text would hold an address, which differs from run to run.
    return str(value) if isinstance(value, torch.dtype) else type(value).__qualname__


def request_fields(fields: dict[str, Any], engine: str) -> dict[str, Any]:
    """Return the namespace fields of a request as a pool needs them.

    An adapter is named by its path, or for one process alone; neither says what another engine, or
    the next one here, finds there. So rows behind adapters are those of `engine` alone.
    """
    return {**fields, "lora": f"{fields['lora']}@{engine}"} if fields.get("lora") else fields


def joined(digests: Sequence[str]) -> str:
    """Return one digest for the weights of all ranks, each of which holds a part of them."""
    if len(digests) == 1:
        return digests[0]
    parts = "|".join(digests).encode()
    return hashlib.blake2b(parts, digest_size=16, person=b"irminsul.ranks").hexdigest()


def rope_digest(table: RopeTable) -> str:
    """Return a digest of the rotation by some numbers of positions."""
    positions = [
        p for p in (*_PROBED_POSITIONS, table.max_positions - 1) if p < table.max_positions
    ]
    rows = table.cos_sin[positions].float().cpu().contiguous()
    # Ten bits less than float32 has: two devices may differ in the last place.
    rounded = (rows * 2**13).round().to(torch.int32)
    content = rounded.numpy().astype("<i4").tobytes()
    pairing = b"interleaved" if table.interleaved else b"half-split"
    return hashlib.blake2b(pairing + content, digest_size=16).hexdigest()


def row_layout(layers: Any, first_layer: int) -> RowLayout:
    """Return the layout of the rows of a KV pool.

    Parameters
    ----------
    layers : sequence of Tensor, [slots, 1, row]
        The pool's KV buffers.
    first_layer : int
        Number of the first of them in the model; another pipeline stage has another.
    """
    row = layers[0]
    name = f"mla-{row.shape[-1]}-{row.dtype}-from{first_layer}".replace("torch.", "")
    return RowLayout(name, len(layers), row.shape[-1] * row.element_size())
