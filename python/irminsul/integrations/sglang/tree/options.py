"""A request's ``custom_params`` and the settings -> whether it reuses, and what it has repaired.

Must not import SGLang.

A request chooses by ``{"irminsul": false}`` or ``{"irminsul": {"mode": "exact"}}`` against moved
rows, by ``{"irminsul": true}`` or ``{"irminsul": {"mode": "reuse"}}`` for them. ``"relink"`` beside
``"mode"``, or alone, is a share from 0 to 1. What cannot be understood means exact.
"""

from __future__ import annotations

from typing import Any

from irminsul.integrations.sglang.settings import Settings
from irminsul.mentions import is_share

_OPTION = "irminsul"
_MODES = ("reuse", "exact")


def exact_reason(request: Any, settings: Settings) -> str | None:
    """Return why the options serve `request` exactly, or None when they let it reuse."""
    option = given(request)
    if isinstance(option, dict) and set(option) <= {"mode", "relink"}:
        understood = is_share(option.get("relink", 0))
        option = option.get("mode", settings.mode) if understood else option
    if option is None:
        option = settings.mode
    elif isinstance(option, bool):
        option = "reuse" if option else "exact"
    if option not in _MODES:
        return "bad_option"
    return "exact" if option == "exact" else None


def relink_share(request: Any, settings: Settings) -> float:
    """Return the share of the rows moved for `request` that may be computed again.

    The request's own where it names one. Only for requests that `exact_reason` lets reuse.
    """
    option = given(request)
    chosen = option.get("relink") if isinstance(option, dict) else None
    return settings.relink if chosen is None else float(chosen)


def given(request: Any) -> Any:
    """Return what `request` says of irminsul, as it came, or None."""
    parameters = getattr(request, "sampling_params", None)
    custom = getattr(parameters, "custom_params", None)
    return custom.get(_OPTION) if isinstance(custom, dict) else None
