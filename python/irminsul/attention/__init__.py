"""Absorbed MLA attention over a paged latent cache, with the keys' rotation fused in.

One operator with two backends; imports torch, never an engine.
"""

from irminsul.attention.cuda import build_tiles
from irminsul.attention.fp8 import (
    FP8_ROW_BYTES,
    dequantize_rows,
    mla_attention_fp8_reference,
    quantize_rows,
)
from irminsul.attention.fp8_op import mla_attention_fp8
from irminsul.attention.op import mla_attention, plan_attention
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
    "FP8_ROW_BYTES",
    "PAGE_SIZE",
    "KeySpan",
    "TileTable",
    "build_tiles",
    "dequantize_rows",
    "mla_attention",
    "mla_attention_fp8",
    "mla_attention_fp8_reference",
    "mla_attention_reference",
    "plan_attention",
    "quantize_rows",
    "spans_from_plan",
    "tiles_from_pages",
    "tiles_from_spans",
]
