"""Token sequences -> how much of each any content cache could have reused.

Must not know chunks, registries or policies: it is the yardstick for them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["SeenGrams", "seen_before"]

# An odd multiplier has an inverse modulo 2**64, which turns a rolling hash into prefix sums.
_BASE = 0x9E37_79B9_7F4A_7C15


def seen_before(
    prompts: Sequence[npt.NDArray[np.uint32]], gram: int = 64
) -> list[npt.NDArray[np.bool_]]:
    """Mark the tokens that lie in a `gram`-token stretch of an earlier prompt.

    Parameters
    ----------
    prompts : sequence of uint32 [n_i]
        In order of arrival.
    gram : int
        Length of the stretches, in tokens, at least 1.

    Returns
    -------
    list of bool [n_i]
        True where the token is part of at least one stretch that also occurs in an earlier prompt.

    Notes
    -----
    Stretches are told apart by a 64-bit polynomial hash. By chance, two of the 10**8 stretches of
    a large trace collide with probability below 10**-3, so the bound may be called exact.
    """
    hashes = [_gram_hashes(prompt, gram) for prompt in prompts]
    lengths = np.array([len(h) for h in hashes], dtype=np.int64)
    if not lengths.sum():
        return [np.zeros(len(prompt), np.bool_) for prompt in prompts]
    flat = np.concatenate(hashes)
    owner = np.repeat(np.arange(len(prompts), dtype=np.int32), lengths)
    repeated = _first_owner(flat, owner) < owner
    parts = np.split(repeated, np.cumsum(lengths)[:-1])
    return [_covered(part, len(prompt), gram) for part, prompt in zip(parts, prompts, strict=True)]


class SeenGrams:
    """The same marks, one prompt at a time, in memory that grows with distinct content only.

    Parameters
    ----------
    gram : int
        Length of the stretches, in tokens, at least 1.
    """

    def __init__(self, gram: int = 64) -> None:
        self._gram = gram
        self._seen: set[int] = set()

    def mark(self, tokens: npt.NDArray[np.uint32], known: int = 0) -> npt.NDArray[np.bool_]:
        """Mark a prompt against all earlier ones, then remember it.

        Parameters
        ----------
        tokens : uint32 [n]
        known : int
            So many tokens are an exact prefix of an earlier prompt; saves hashing them again.

        Returns
        -------
        bool [n]
            As from `seen_before`; the first `known` are True.
        """
        skip = max(known - self._gram + 1, 0)
        hashes = _gram_hashes(tokens[skip:], self._gram).tolist()
        repeated = np.fromiter((h in self._seen for h in hashes), np.bool_, len(hashes))
        self._seen.update(hashes)
        marks = np.ones(len(tokens), np.bool_)
        marks[skip:] = _covered(repeated, len(tokens) - skip, self._gram)
        marks[:known] = True
        return marks


def _gram_hashes(tokens: npt.NDArray[np.uint32], gram: int) -> npt.NDArray[np.uint64]:
    """Return the hash of every stretch, uint64 [max(n - gram + 1, 0)]."""
    count = len(tokens) - gram + 1
    if count <= 0:
        return np.empty(0, np.uint64)
    # Ids are small; spread them first, or the sums of neighbours would have too few values.
    values = (tokens.astype(np.uint64) + np.uint64(1)) * np.uint64(0xD6E8_FEB8_6659_FD93)
    values ^= values >> np.uint64(32)
    sums = np.zeros(len(tokens) + 1, np.uint64)
    np.cumsum(values * _powers(pow(_BASE, -1, 1 << 64), len(tokens)), out=sums[1:])
    return (sums[gram:] - sums[:count]) * _powers(_BASE, count)


def _powers(base: int, count: int) -> npt.NDArray[np.uint64]:
    powers = np.full(count, base, np.uint64)
    powers[0] = 1
    return np.multiply.accumulate(powers)


def _first_owner(
    keys: npt.NDArray[np.uint64], owner: npt.NDArray[np.int32]
) -> npt.NDArray[np.int32]:
    """Return for every key the owner of its first occurrence; owners ascend."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    first = owner[order[starts]]
    result = np.empty(len(keys), np.int32)
    result[order] = first[np.cumsum(starts) - 1]
    return result


def _covered(repeated: npt.NDArray[np.bool_], length: int, gram: int) -> npt.NDArray[np.bool_]:
    """Spread each stretch that repeats over its `gram` tokens."""
    edges = np.zeros(length + 1, np.int32)
    starts = np.flatnonzero(repeated)
    edges[starts] += 1
    np.subtract.at(edges, starts + gram, 1)
    covered: npt.NDArray[np.bool_] = np.cumsum(edges[:-1]) > 0
    return covered
