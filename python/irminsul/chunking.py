"""Token ids -> content-defined chunks and their fingerprints.

Knows nothing of donors, engines or torch; the work is done by the Rust core.
"""

from irminsul._core import Chunk, ChunkParams, Chunks, chunk, chunk_many

__all__ = ["Chunk", "ChunkParams", "Chunks", "chunk", "chunk_many"]
