"""Namespace fields -> the bytes that two namespaces are compared by.

Knows nothing of what the fields mean.
"""

import struct


def encode(*fields: bytes) -> bytes:
    """Return name and version of the format, then each field after its 32-bit byte count."""
    assert len(fields) == 5
    return b"IRMN\x01" + b"".join(struct.pack("<I", len(field)) + field for field in fields)
