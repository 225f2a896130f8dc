"""Frozen formats of tiers -> tests/golden/tiers.json; a second implementation, byte by byte.

Run it only to add vectors. A changed one means that pools written before cannot be read.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from pathlib import Path
from typing import Any

from xxhash import xxh3_128

sys.path.insert(0, str(Path(__file__).parent.parent))

from reference.namespace import encode

CASES: list[tuple[tuple[str, str, str, str, str], list[int], tuple[str, int, int], int]] = [
    (("", "", "", "", ""), [0], ("r", 1, 1), 0),
    (("m", "bf16", "yarn", "", "a"), [1, 2, 3], ("mla-512+64-bfloat16", 2, 3), 77),
    (("m", "bf16", "yarn", "", "b"), [1, 2, 3], ("mla-512+64-bfloat16", 2, 3), 77),
    (("m", "bf16", "yarn", "a", ""), [2**32 - 1] * 5, ("x" * 20, 3, 1), 2**40),
]


def key(namespace: bytes, tokens: list[int]) -> bytes:
    content = struct.pack("<IQ", 1, len(namespace)) + namespace
    content += struct.pack("<Q", len(tokens)) + struct.pack(f"<{len(tokens)}I", *tokens)
    return hashlib.blake2b(content, digest_size=32, person=b"irminsul.chunk").digest()


def value(
    namespace: bytes, tokens: list[int], layout: tuple[str, int, int], base: int, rows: bytes
) -> bytes:
    name, layers, row_bytes = layout
    space = hashlib.blake2b(namespace, digest_size=32, person=b"irminsul.space").digest()
    tail = name.encode() + struct.pack(f"<{len(tokens)}I", *tokens)
    # 8 + 4 + 4 + 32 + 8 + 6 * 4 bytes of head, then 16 of checksum.
    before = 80 + 16 + len(tail)
    offset = (before + 63) // 64 * 64
    head = b"IRMINSUL" + struct.pack("<II", 1, offset) + space
    head += struct.pack("<QIIIIII", base, 1, 2, len(tokens), layers, row_bytes, len(name))
    tail += bytes(offset - before) + rows
    return head + xxh3_128(head + tail).digest() + tail


def render() -> str:
    vectors: list[dict[str, Any]] = []
    for fields, tokens, layout, base in CASES:
        namespace = encode(*(field.encode() for field in fields))
        rows = bytes((7 * i + 1) % 256 for i in range(layout[1] * len(tokens) * layout[2]))
        vectors.append(
            {
                "namespace": list(fields),
                "tokens": tokens,
                "layout": list(layout),
                "base_position": base,
                "hops": 1,
                "depth": 2,
                "rows": rows.hex(),
                "key": key(namespace, tokens).hex(),
                "value": value(namespace, tokens, layout, base, rows).hex(),
            }
        )
    return "[\n" + ",\n".join(json.dumps(vector) for vector in vectors) + "\n]\n"


if __name__ == "__main__":
    Path(__file__).with_name("tiers.json").write_text(render(), encoding="utf-8")
