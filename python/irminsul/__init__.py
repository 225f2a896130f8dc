"""Position-independent KV cache for Multi-Head Latent Attention models.

Knows nothing of torch or of any engine; those parts are imported by name.
"""

from irminsul._core import __version__
from irminsul.chunking import Chunk, ChunkParams, Chunks, chunk, chunk_many
from irminsul.errors import IrminsulError
from irminsul.markers import boundary_marker
from irminsul.planning import Compute, Piece, Policy, Quota, Reuse, ReusePlan
from irminsul.registry import Namespace, Registry, default_registry, lookup, record

__all__ = [
    "Chunk",
    "ChunkParams",
    "Chunks",
    "Compute",
    "IrminsulError",
    "Namespace",
    "Piece",
    "Policy",
    "Quota",
    "Registry",
    "Reuse",
    "ReusePlan",
    "__version__",
    "boundary_marker",
    "chunk",
    "chunk_many",
    "default_registry",
    "lookup",
    "record",
]
