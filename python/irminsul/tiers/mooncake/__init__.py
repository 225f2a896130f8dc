"""Mooncake Store behind the tier interface: a process of its own holds Mooncake's client."""

from irminsul.tiers.mooncake.settings import MooncakeSettings
from irminsul.tiers.mooncake.tier import MooncakeTier

__all__ = ["MooncakeSettings", "MooncakeTier"]
