"""Position-independent KV cache for Multi-Head Latent Attention models."""

from irminsul._core import __version__

__all__ = ["__version__"]
