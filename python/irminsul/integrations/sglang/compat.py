"""SGLang as installed -> the attributes irminsul uses, checked, and one spelling for all versions.

The only file here that may branch on a version's shape. It asks what exists, never a number: SGLang
moves names inside 0.5.x.

``rows`` imports SGLang when it is there and works without it, for ``irminsul doctor``.
"""

from __future__ import annotations

import dis
import importlib.metadata
import importlib.util
import inspect
import pkgutil
from array import array
from dataclasses import dataclass
from typing import Any

from irminsul.integrations.sglang import attributes

RANGE = ">=0.5.16,<0.5.24"
ORIGINAL = "irminsul_original"
"""Attribute of a function that stands in the place of one of SGLang's: that function."""


@dataclass(frozen=True)
class Row:
    """One SGLang attribute that irminsul relies on."""

    target: str
    resolved: bool
    detail: str


def version() -> str | None:
    """Return the version of the installed SGLang, or None."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return None


def rows() -> list[Row]:
    """Check every attribute that irminsul uses; nothing is registered or changed.

    Returns
    -------
    list of Row
        ``detail`` says what is wrong where ``resolved`` is False. One row with the target
        ``sglang`` stands alone when SGLang cannot be imported.
    """
    if importlib.util.find_spec("sglang") is None:
        return [Row("sglang", False, f"not installed; irminsul works with sglang{RANGE}")]
    found = [_call_row(target, names) for target, names in attributes.CALLS.items()]
    found += [_field_row(target, names) for target, names in attributes.FIELDS.items()]
    found += [_either_row(targets) for targets in attributes.EITHER]
    return found


def optional_row(target: str) -> Row:
    """Check one attribute that irminsul can do without, see `attributes.OPTIONAL`."""
    return _call_row(target, attributes.OPTIONAL[target])


def optional_rows() -> list[Row]:
    """Check every attribute that irminsul can do without."""
    return [optional_row(target) for target in attributes.OPTIONAL]


def resolved(server_args: Any) -> Any:
    """Return the server arguments as SGLang resolved them; 0.5.19 keeps those apart from typed."""
    try:
        from sglang.srt.arg_groups.model_override_base import resolved_view
    except ImportError:
        return server_args
    return resolved_view(server_args)


def server_value(server_args: Any, name: str, default: Any = None) -> Any:
    """Return a server argument as SGLang resolved it, or `default` where it has none."""
    return getattr(resolved(server_args), name, default)


def attention_backend(server_args: Any, phase: str) -> str:
    """Return the name of the attention backend of a `phase`, ``prefill`` or ``decode``."""
    chosen = server_value(server_args, f"{phase}_attention_backend")
    return str(chosen or server_value(server_args, "attention_backend"))


def attention_groups(server_args: Any) -> int:
    """Return how many groups of ranks share out requests in attention data parallelism; 1 is none.

    0.5.22 counts them apart from replicas and forgets the flag once arguments are resolved.
    """
    flag = server_value(server_args, "enable_dp_attention", False)
    number = server_value(server_args, "dp_size" if flag else "attn_dp_size", 1)
    return max(1, int(number or 1))


def extend_end(request: Any) -> int:
    """Return the position at which the request's current prefill round ends."""
    if hasattr(request, "extend_end"):
        return int(request.extend_end)
    return int(request.extend_range.end)


def prefix_length(request: Any) -> int:
    """Return the position at which the request's current prefill round begins."""
    if hasattr(request, "prefix_len"):
        return int(request.prefix_len)
    return len(request.prefix_indices)


def prompt_tokens(request: Any) -> array[int]:
    """Return all ids that the request prefills, over all rounds; SGLang's own array."""
    tokens: array[int] = request.full_untruncated_fill_ids
    return tokens


def count_moved(adder: Any, request: Any, tokens: int) -> None:
    """Count `tokens` of an admitted request as hits; the adder has counted them as input.

    For SGLang's own log line and hit rate. What a retracted request repeats is kept apart there,
    and newer versions also count the hits of each tier.
    """
    adder.log_hit_tokens += tokens
    adder.log_input_tokens -= tokens
    if request.retracted_stain:
        adder.reprocessed_log_hit_tokens += tokens
        adder.reprocessed_log_input_tokens -= tokens
    elif hasattr(adder, "log_device_hit_tokens"):
        adder.log_device_hit_tokens += tokens


def pool_row(request: Any) -> int:
    """Return the request's row in ``req_to_token``."""
    held = getattr(request, "kv", None)
    row = getattr(held, "req_pool_idx", None)
    return int(request.req_pool_idx if row is None else row)


def _resolve(target: str) -> Any:
    return pkgutil.resolve_name("sglang.srt." + target)


def _call_row(target: str, wanted: tuple[str, ...]) -> Row:
    try:
        attribute = _resolve(target)
    except Exception as error:
        return Row(target, False, f"does not import: {type(error).__name__}: {error}")
    if not wanted:
        return Row(target, True, "")
    names = list(inspect.signature(inspect.unwrap(attribute)).parameters)
    # A bound classmethod shows no ``cls``; a hooked one, unwrapped, does.
    names = [name for name in names if name != "cls"]
    if names[: len(wanted)] == list(wanted):
        return Row(target, True, "")
    return Row(target, False, f"takes ({', '.join(names)}), irminsul needs ({', '.join(wanted)})")


def _field_row(target: str, wanted: tuple[str, ...]) -> Row:
    try:
        known = _names(_resolve(target))
    except Exception as error:
        return Row(target, False, f"does not import: {type(error).__name__}: {error}")
    missing = [name for name in wanted if name not in known]
    return Row(target, not missing, f"has no {', '.join(missing)}" if missing else "")


def _either_row(targets: tuple[str, ...]) -> Row:
    rows = [_field_row(*_split(target)) for target in targets]
    resolved = any(row.resolved for row in rows)
    detail = "" if resolved else "; ".join(f"{row.target} {row.detail}" for row in rows)
    return Row(" or ".join(targets), resolved, detail)


def _split(target: str) -> tuple[str, tuple[str, ...]]:
    owner, _, name = target.rpartition(".")
    return owner, (name,)


def _names(declared: Any) -> set[str]:
    """Return what instances of a class have: declared on it, or assigned to in its methods."""
    known = set(dir(declared)) | set(getattr(declared, "__dataclass_fields__", ()))
    for ancestor in declared.__mro__:
        known |= set(vars(ancestor).get("__annotations__", ()))
        for member in vars(ancestor).values():
            function = inspect.unwrap(member) if callable(member) else member
            if code := getattr(function, "__code__", None):
                steps = dis.get_instructions(code)
                known |= {step.argval for step in steps if step.opname == "STORE_ATTR"}
    return known
