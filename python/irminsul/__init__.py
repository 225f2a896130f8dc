"""Position-independent KV cache for Multi-Head Latent Attention models.

Knows nothing of torch or of any engine; those parts are imported by name.
"""

from typing import TYPE_CHECKING

from irminsul.errors import IrminsulError, NativeUnavailable

try:
    from irminsul._core import __version__
except ImportError as error:
    _UNAVAILABLE = (
        f"the extension module irminsul._core does not load ({error}): install irminsul-kv again "
        f"with this Python, or run `make build` in a checkout"
    )

    if not TYPE_CHECKING:

        def __getattr__(name: str) -> object:
            """Say why no name of the core is there; parts that need none of them still work."""
            if name.startswith("__") and name != "__version__":
                raise AttributeError(name)
            raise NativeUnavailable(_UNAVAILABLE)

else:
    from irminsul.chunking import Chunk, ChunkParams, Chunks, chunk, chunk_many
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
