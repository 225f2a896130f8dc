"""What a lookup answers: which prompt positions are reused, from where, and which are computed.

Knows nothing of how matches are found, nor of the engine that carries a plan out.
"""

from irminsul._core import Compute, Piece, Policy, Quota, Reuse, ReusePlan

__all__ = ["Compute", "Piece", "Policy", "Quota", "Reuse", "ReusePlan"]
