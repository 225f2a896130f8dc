"""Environment variables and an optional JSON file -> one frozen settings object.

Must not know SGLang: SGLang has no free-form server argument, so this is a plugin's only channel;
scheduler processes inherit the environment of the process that starts them.
"""

from __future__ import annotations

import difflib
import json
import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from irminsul.errors import InvalidParams
from irminsul.mentions import check_share

logger = logging.getLogger(__name__)

CONFIG_VARIABLE = "IRMINSUL_CONFIG"
PREFIX = "IRMINSUL_"

Mode = Literal["reuse", "exact"]
OnUnsupported = Literal["refuse", "stock"]
Reuse = Literal["copy", "share"]


@dataclass(frozen=True)
class Settings:
    """What an operator can set; field ``min_span`` is variable ``IRMINSUL_MIN_SPAN``.

    Parameters
    ----------
    mode
        ``reuse``, or ``exact``: no request reuses moved content unless it asks for it.
    reuse
        ``copy``: reused rows are moved to slots of the request. ``share``: whole pages of them are
        read where they lie, which needs ``--attention-backend irminsul`` and pages of 64 tokens.
    on_unsupported
        What a start-up refusal does: ``refuse`` stops the scheduler, ``stock`` serves with
        SGLang's own cache and a warning.
    capacity_tokens
        Tokens the registry remembers; 0 means the size of the KV pool.
    chunk_min, chunk_avg, chunk_max
        Sizes of content-defined chunks, in tokens; 0 keeps the library's default.
    chunk_secret
        Seed of the chunk boundaries.
    sink_tokens, min_span, recompute_head, max_hops, max_depth, max_segments, span_cost, min_gain
        The policy of `irminsul.Policy`; -1 keeps the library's default.
    relink
        Most of a request's moved rows, from 0 to 1, that is computed again because of what stands
        before them now, see `irminsul.mentions`.
    windows
        Also find text by sampled windows of 32 tokens, where chunk boundaries fell elsewhere.
    max_rows
        Most rows a batch is expanded to (one per hole); 0 means what the request pool allows.
    max_row_tokens
        Most prefix tokens of all rows together, which bounds an attention backend's index arrays.
    host_bytes
        Host memory for rows that leave the KV pool or come from other hosts; 0 means none, or 1 GiB
        when a store is named.
    pool_master, pool_metadata, pool_hostname, pool_protocol, pool_device
        A Mooncake Store that engines share: its master as ``host:port`` (empty: none), and what
        else `irminsul.tiers.MooncakeSettings` needs.
    pool_wait
        Longest time in seconds that a request waits for rows from the store without news.
    gather
        Seconds without an arrival for which mostly known requests wait for others of their burst.
    plan_guard
        Before SGLang's flashinfer backend plans a decode step, wait for the copy of its last plan.
    log_interval
        Seconds between two log lines of one kind on the data path.
    test_no_tree_match, test_planner_raises
        For tests only: requests whose id starts so take no exact prefix; batches that hold such a
        request fail to be planned, at admission or, with ``late-`` before it, afterwards. Empty
        means none.
    test_holes
        For tests only: requests whose id is this, a number, ``-`` and anything are computed at
        that many places, as if the content there were unknown.
    test_form
        For tests only: requests whose id has the part ``absorb`` or ``mha``, between hyphens, move
        every span they can, and their batches run in that form of attention.
    test_move
        For tests only: requests whose id starts so borrow nothing where others may. Empty means
        none.
    test_dump_rows
        For tests only: folder that receives every plan, and the KV rows of every request before
        they enter the tree.

    Raises
    ------
    InvalidParams
        A number is not finite, or negative without being the -1 of a policy's field.
    """

    mode: Mode = "reuse"
    reuse: Reuse = "copy"
    on_unsupported: OnUnsupported = "refuse"
    capacity_tokens: int = 0
    chunk_min: int = 0
    chunk_avg: int = 0
    chunk_max: int = 0
    chunk_secret: int = 0
    sink_tokens: int = -1
    min_span: int = -1
    recompute_head: int = -1
    max_hops: int = -1
    max_depth: int = -1
    max_segments: int = -1
    span_cost: int = -1
    min_gain: int = -1
    relink: float = 0.0
    windows: bool = True
    max_rows: int = 0
    max_row_tokens: int = 4_194_304
    host_bytes: int = 0
    pool_master: str = ""
    pool_metadata: str = "P2PHANDSHAKE"
    pool_hostname: str = "127.0.0.1"
    pool_protocol: str = "tcp"
    pool_device: str = ""
    pool_wait: float = 0.04
    gather: float = 0.002
    plan_guard: bool = True
    log_interval: float = 60.0
    test_no_tree_match: str = ""
    test_planner_raises: str = ""
    test_holes: str = ""
    test_move: str = ""
    test_dump_rows: str = ""
    test_form: bool = False

    def __post_init__(self) -> None:
        check_share(self.relink)
        for name, value in vars(self).items():
            least = -1 if name in _POLICY else 0
            if isinstance(value, (int, float)) and not least <= value < math.inf:
                raise InvalidParams(f"{name} is {value}; it must be a number from {least} on")


def load(environment: Mapping[str, str] | None = None) -> Settings:
    """Read the JSON file named by ``IRMINSUL_CONFIG``, then the variables, which win.

    Parameters
    ----------
    environment
        Variables to read; the process's own by default.

    Raises
    ------
    InvalidParams
        The file cannot be read, holds an unknown key, or a value has the wrong type or is not
        allowed.
    """
    environment = os.environ if environment is None else environment
    values = _from_file(environment.get(CONFIG_VARIABLE, ""))
    for field in fields(Settings):
        name = PREFIX + field.name.upper()
        if environment.get(name, "") != "":
            values[field.name] = _parsed(name, environment[name], _TYPES[field.name])
    for name in misspelt(environment):
        logger.warning("irminsul: %s", name)
    return Settings(**values)


def misspelt(environment: Mapping[str, str]) -> list[str]:
    """Return one sentence for every variable that looks like a setting and is none.

    Only near misses: orchestrators put variables of their own under a service's name.
    """
    known = {PREFIX + field.name.upper() for field in fields(Settings)} | {CONFIG_VARIABLE}
    found = []
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known:
            for close in difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.9):
                found.append(f"{name} is no setting and has no effect; is {close} meant?")
    return found


def policy_overrides(settings: Settings) -> dict[str, Any]:
    """Return the policy fields that `settings` changes, for ``irminsul.Policy(**...)``."""
    changed = {name: value for name in _POLICY if (value := getattr(settings, name)) >= 0}
    return changed if settings.windows else {**changed, "windows": False}


def chunk_overrides(settings: Settings) -> dict[str, Any]:
    """Return the chunk sizes that `settings` changes, for ``irminsul.ChunkParams(**...)``."""
    names = ("min", "avg", "max", "secret")
    return {name: value for name in names if (value := getattr(settings, f"chunk_{name}")) > 0}


def store_fields(settings: Settings) -> dict[str, Any]:
    """Return the fields of ``irminsul.tiers.MooncakeSettings`` that `settings` give."""
    return {
        "master": settings.pool_master,
        "metadata": settings.pool_metadata,
        "local_hostname": settings.pool_hostname,
        "protocol": settings.pool_protocol,
        "device": settings.pool_device,
    }


_TYPES: dict[str, Any] = get_type_hints(Settings)
_POLICY = (
    "sink_tokens",
    "min_span",
    "recompute_head",
    "max_hops",
    "max_depth",
    "max_segments",
    "span_cost",
    "min_gain",
)


def _from_file(path: str) -> dict[str, Any]:
    if not path:
        return {}
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidParams(f"{CONFIG_VARIABLE}={path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise InvalidParams(f"{CONFIG_VARIABLE}={path} must hold a JSON object")
    unknown = sorted(set(content) - set(_TYPES))
    if unknown:
        raise InvalidParams(
            f"{CONFIG_VARIABLE}={path} has unknown keys {unknown}; known are {sorted(_TYPES)}"
        )
    return {name: _checked(name, value, _TYPES[name]) for name, value in content.items()}


def _parsed(name: str, text: str, kind: Any) -> Any:
    if kind is bool:
        if text.lower() not in _BOOLEANS:
            raise InvalidParams(f"{name}={text!r} is not a boolean; use 1 or 0")
        return _BOOLEANS[text.lower()]
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            raise InvalidParams(f"{name}={text!r} is not of type {kind.__name__}") from None
    return _checked(name, text, kind)


def _checked(name: str, value: Any, kind: Any) -> Any:
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise InvalidParams(f"{name}={value!r} is not one of {list(get_args(kind))}")
        return value
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise InvalidParams(f"{name}={value!r} is not of type {kind.__name__}")
    return value


_BOOLEANS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
