"""Absorbed MLA attention over a paged latent cache, with the keys' rotation fused in.

One operator with two backends; imports torch, never an engine.
"""

from irminsul.attention.reference import mla_attention_reference
from irminsul.attention.tiles import (
    PAGE_SIZE,
    KeySpan,
    TileTable,
    spans_from_plan,
    tiles_from_pages,
    tiles_from_spans,
)

__all__ = [
    "PAGE_SIZE",
    "KeySpan",
    "TileTable",
    "mla_attention_reference",
    "spans_from_plan",
    "tiles_from_pages",
    "tiles_from_spans",
]
