"""What each rank of one attention group has planned -> whether all of them planned the same.

Knows a process group and numbers; must not know batches, plans or SGLang.

Ranks of a tensor-parallel group run one scheduler each, over the same requests in the same order.
Batches of different shape on two ranks would hang the engine, so a plan is used only where every
rank has come to the same one: the digests of all ranks meet in one small all-reduce on the host.
A rank whose planning failed votes `NOTHING`, which makes the others give theirs up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch

T = TypeVar("T")

# The digest of a rank that plans nothing.
NOTHING = 0


class Agreement:
    """Compares digests within one group of ranks.

    Parameters
    ----------
    group
        ``torch.distributed`` group on the host (gloo); None for a single rank.

    Notes
    -----
    `agree`, `all_of`, `least` and `gathered` are collective: every rank of the group has to make
    the same calls in the same order, also when it has nothing to say.
    """

    def __init__(self, group: Any = None) -> None:
        self._group = group

    @classmethod
    def alone(cls) -> Agreement:
        """Return the agreement of a single rank with itself, which communicates with nobody."""
        return cls(None)

    @classmethod
    def of(cls, context: Any) -> Agreement:
        """Return the agreement of the ranks that run the same requests as this one.

        Parameters
        ----------
        context
            SGLang's ``TreeCacheBuildContext``. Under attention data parallelism the group is the
            part of the tensor-parallel group that shares this rank's requests.
        """
        group = context.params.attn_tp_cache_group
        alone = group is None or torch.distributed.get_world_size(group) == 1
        return cls(None if alone else group)

    @property
    def ranks(self) -> int:
        """Number of ranks that have to agree."""
        return 1 if self._group is None else int(torch.distributed.get_world_size(self._group))

    @property
    def first(self) -> bool:
        """True on one rank of the group, which does what one must do for all."""
        return self._group is None or torch.distributed.get_rank(self._group) == 0

    def agree(self, digest: int) -> bool:
        """Return whether every rank gave the same `digest`, the same answer on all of them.

        Parameters
        ----------
        digest
            In ``[0, 2**62)``, for example from `digest_of`; `NOTHING` when there is no plan.
        """
        # Smallest digest and, negated, the largest one.
        smallest, largest = self.least([digest, -digest])
        return smallest == -largest

    def all_of(self, ready: bool) -> bool:
        """Return whether every rank is `ready`, the same answer on all of them."""
        return bool(self.least([ready])[0])

    def least(self, numbers: Sequence[int]) -> list[int]:
        """Return the least that any rank gave at each place, the same answer on all of them.

        Parameters
        ----------
        numbers
            As many on every rank, in ``[-2**62, 2**62)``.
        """
        if self._group is None:
            return list(numbers)
        least = torch.tensor(list(numbers), dtype=torch.int64)
        torch.distributed.all_reduce(least, torch.distributed.ReduceOp.MIN, self._group)
        return [int(number) for number in least]

    def gathered(self, given: T) -> list[T]:
        """Return what every rank gave, in the order of ranks; slower than numbers, so be rare."""
        if self._group is None:
            return [given]
        found: list[T] = [given] * self.ranks
        torch.distributed.all_gather_object(found, given, self._group)
        return found


def digest_of(numbers: Iterable[int]) -> int:
    """Return a digest of `numbers` in ``[1, 2**62)``; no two plans in practice share one.

    Parameters
    ----------
    numbers
        Everything that must be equal on all ranks, in order; each fits a signed 64-bit integer.
        The reader must be able to tell where a list ends, so put lengths before lists.
    """
    digest = hashlib.blake2b(digest_size=8)
    for number in numbers:
        digest.update(number.to_bytes(8, "little", signed=True))
    return int.from_bytes(digest.digest(), "little") % (2**62 - 1) + 1
