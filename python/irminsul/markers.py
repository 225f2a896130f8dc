"""Token ids that a tokenizer owns -> a boundary marker, and prompts with marked regions.

Must not know registries or engines. A marker is ordinary tokens; only the chunker knows better.

Text that several prompts share is cut into the same chunks wherever it stands, but for the chunks
at its two ends, which depend on the neighbours. A marker before and after the text forces a cut
there, so that all of its chunks are shared.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from irminsul._core import ChunkParams
from irminsul.errors import InvalidParams, InvalidTokens

__all__ = ["Shared", "boundary_marker", "join_regions", "mark_messages", "marker_text"]

TokenArray = npt.NDArray[np.uint32]

MARKER_TOKENS = 64
"""Length of a marker: the window of the rolling hash."""

_MASK_32 = (1 << 32) - 1
_MASK_64 = (1 << 64) - 1

# A hash below this many bits always ends a chunk.
_THRESHOLD_BITS = 24

# Pairs of ids that are tried; all but one in thousands are good.
_MAX_TRIES = 1000

# Special tokens that vocabularies keep in reserve: no text contains them, no model relies on them.
_RESERVED = re.compile(r"place.?holder|reserved|unused|extra_id", re.IGNORECASE)


def boundary_marker(tokenizer_or_ids: Any, params: ChunkParams | None = None) -> TokenArray:
    """Make the token ids after which a chunk always ends, whatever stands before them.

    Parameters
    ----------
    tokenizer_or_ids : sequence of int, or tokenizer
        Ids to build the marker from; a few dozen always suffice, and white space disturbs a model
        least. From a tokenizer (of the package ``tokenizers`` or ``transformers``, or
        `irminsul.tokenizer.Encoder`) the reserved special tokens are taken, which no text contains
        and which survive as text, see `marker_text`.
    params : ChunkParams, optional
        Those of the registry; the secret matters, the sizes do not.

    Returns
    -------
    uint32 [64]
        Ids to put before and after text that prompts share; see `join_regions`.

    Raises
    ------
    InvalidTokens
        An id lies outside [0, 2**32).
    InvalidParams
        The ids cannot make a marker, or the tokenizer has no reserved tokens.

    Notes
    -----
    The rolling hash is ``h = sum(G(token of age a) << a) mod 2**64`` over the last 64 tokens. The
    token of age ``a`` decides bit ``a`` once the younger ones are fixed, through the lowest bit of
    its ``G``. Two ids whose ``G`` differ in that bit therefore drive all 64 bits to zero, and a
    hash this small always ends a chunk.

    Examples
    --------
    >>> import irminsul, numpy as np
    >>> marker = irminsul.boundary_marker(range(10))
    >>> for seed in range(3):
    ...     context = np.random.default_rng(seed).integers(0, 50_000, 300 + seed, dtype=np.uint32)
    ...     bounds = irminsul.chunk(np.concatenate([context, marker, context])).bounds
    ...     assert len(context) + 64 in bounds
    """
    secret = (params or ChunkParams()).secret
    ids = _candidates(tokenizer_or_ids)
    even = [token for token in ids if not _mix(token ^ secret) & 1]
    odd = [token for token in ids if _mix(token ^ secret) & 1]
    for pair in itertools.islice(itertools.product(even, odd), _MAX_TRIES):
        marker = _build(pair, secret)
        if _cuts_nowhere_else(marker, secret):
            return np.array(marker, dtype=np.uint32)
    raise InvalidParams(
        f"no marker can be made of these {len(ids)} ids: give more; {len(even)} of them have an "
        f"even mixed value and {len(odd)} an odd one, and some of both kinds are needed"
    )


def _build(pair: tuple[int, int], secret: int) -> list[int]:
    """Choose for each age the id that makes the bit of that age zero."""
    marker: list[int] = []
    total = 0
    for age in range(MARKER_TOKENS):
        token = pair[total >> age & 1]
        total = total + (_mix(token ^ secret) << age) & _MASK_64
        marker.append(token)
    return marker[::-1]


def _cuts_nowhere_else(marker: Sequence[int], secret: int) -> bool:
    """Check that no context makes the chunker see a marker before this one ends.

    With `missing` tokens to come, the hash is known but for its highest `missing` bits. The known
    ones must not all look like a marker's; where they are 24 or fewer, the 40 others are left to
    chance. An id whose mixed value is zero fails here: its marker could end one token early.
    """
    total = 0
    for missing, token in zip(range(MARKER_TOKENS - 1, 0, -1), marker, strict=False):
        total = (total << 1) + _mix(token ^ secret) & _MASK_64
        known = MARKER_TOKENS - missing
        if known > _THRESHOLD_BITS and total % (1 << known) < 1 << _THRESHOLD_BITS:
            return False
    return True


@dataclass(frozen=True, slots=True)
class Shared:
    """A part of a prompt that other prompts contain too: ``tokens`` is a sequence of ids."""

    tokens: Sequence[int] | TokenArray


def join_regions(
    parts: Iterable[Sequence[int] | TokenArray | Shared], marker: TokenArray
) -> TokenArray:
    """Concatenate the parts of a prompt, with a marker before and after every shared one.

    Parameters
    ----------
    parts : iterable of id sequences
        In order; those inside `Shared` are marked. Neighbours that are both shared have one marker
        between them.
    marker : uint32 [64]
        From `boundary_marker`.

    Returns
    -------
    uint32 [n]

    Examples
    --------
    >>> import irminsul
    >>> from irminsul.markers import Shared, join_regions
    >>> marker = irminsul.boundary_marker(range(10))
    >>> len(join_regions([[1, 2, 3], Shared([4, 5]), Shared([6]), [7]], marker))
    199
    """
    joined: list[Sequence[int] | TokenArray] = []
    for part in parts:
        if not isinstance(part, Shared):
            joined.append(part)
            continue
        if not joined or joined[-1] is not marker:
            joined.append(marker)
        joined += [part.tokens, marker]
    arrays = [np.asarray(part, dtype=np.uint32) for part in joined]
    return np.concatenate(arrays) if arrays else np.empty(0, np.uint32)


def marker_text(marker: TokenArray, tokenizer: Any) -> str:
    """Return the text that the tokenizer turns back into the marker.

    Parameters
    ----------
    marker : uint32 [64]
        From `boundary_marker`.
    tokenizer : tokenizer
        The one that will encode the prompt.

    Raises
    ------
    InvalidParams
        Encoding the text gives other ids: markers of ordinary tokens, such as white space, merge
        with each other and can be inserted as ids only.
    """
    backend = _backend(tokenizer)
    text = "".join(str(backend.id_to_token(int(token))) for token in marker)
    if list(backend.encode(text, add_special_tokens=False).ids) != marker.tolist():
        raise InvalidParams(
            "this marker does not survive as text under this tokenizer: insert it as ids, or make "
            "one from special tokens"
        )
    return text


def mark_messages(
    messages: Iterable[Mapping[str, Any]], shared: Iterable[int], text: str
) -> list[dict[str, Any]]:
    """Put marker text round the contents of the chat messages that other prompts contain too.

    Parameters
    ----------
    messages : iterable of mappings
        OpenAI chat messages; they are not changed.
    shared : iterable of int
        Indexes of the messages to mark; their ``content`` must be a string.
    text : str
        From `marker_text`.

    Raises
    ------
    InvalidParams
        An index does not exist, or the message's content is not a string.
    """
    marked = [dict(message) for message in messages]
    for index in shared:
        content = marked[index].get("content") if 0 <= index < len(marked) else None
        if not isinstance(content, str):
            raise InvalidParams(
                f"message {index} cannot be marked: it must be one of the {len(marked)} messages "
                "and its content a string"
            )
        marked[index]["content"] = text + content + text
    return marked


def _mix(token: int) -> int:
    """Return ``G(token)``, as the chunker mixes ids."""
    product = token * 0x9E37_79B1
    low = product >> 13 & _MASK_32
    return low * 0xF2D4_A6C7 + (product << 32) & _MASK_64


def _candidates(source: Any) -> list[int]:
    if hasattr(source, "__iter__") and not hasattr(source, "encode"):
        ids = [int(token) for token in source]
    else:
        ids = _reserved_ids(source)
    for token in ids:
        if not 0 <= token <= _MASK_32:
            raise InvalidTokens(f"token id {token} lies outside [0, 2**32)")
    return ids


def _reserved_ids(tokenizer: Any) -> list[int]:
    added = _backend(tokenizer).get_added_tokens_decoder()
    ids = sorted(i for i, token in added.items() if _RESERVED.search(token.content))
    if not ids:
        raise InvalidParams(
            "this tokenizer has no reserved special tokens: give the ids to build the marker from"
        )
    return ids


def _backend(tokenizer: Any) -> Any:
    """Return the ``tokenizers.Tokenizer`` inside whatever wraps it."""
    for name in ("backend_tokenizer", "backend"):
        tokenizer = getattr(tokenizer, name, tokenizer)
    if not hasattr(tokenizer, "get_added_tokens_decoder"):
        raise InvalidParams(
            f"{type(tokenizer).__name__} is neither a sequence of ids nor a tokenizer of the "
            "packages tokenizers or transformers"
        )
    return tokenizer
