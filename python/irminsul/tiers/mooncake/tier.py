"""The tier interface -> batches for Mooncake, each inside its bounds.

Must not know processes, codes or engines.

Mooncake keeps the first value that is written under a key and answers a second write with success.
Keys are digests of content, so that is what we want, but for a value that fails its checks: such a
one is removed, or it would stay a miss for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from irminsul.tiers.base import Counts, Receive
from irminsul.tiers.keys import ChunkRef
from irminsul.tiers.mooncake.calls import Call, Exists, Get, Put, Remove
from irminsul.tiers.mooncake.link import Link
from irminsul.tiers.mooncake.meter import Meter
from irminsul.tiers.mooncake.settings import MooncakeSettings, require_mooncake
from irminsul.tiers.ticket import Ticket
from irminsul.tiers.value import ChunkRows, encoded_bytes

__all__ = ["MooncakeTier"]

T = TypeVar("T")

# Calls of this size keep several workers busy and show progress; a call costs about 1 ms besides.
_CALL_BYTES = 8 << 20
# `exists` moves no rows, so many keys fit one call; the request itself must stay small.
_EXISTS_KEYS = 512


class MooncakeTier:
    """A `Tier` in a Mooncake Store that other hosts share.

    Parameters
    ----------
    settings : MooncakeSettings
        Where the store is and what may be spent.
    transferred : callable, optional
        Called with bytes and seconds of every stretch in which fetches were under way, in a thread
        of the tier; a cost model's food.

    Raises
    ------
    MissingExtra
        mooncake or xxhash is not installed. (A store that is away is no error: it is tried again
        for as long as the tier lives.)

    Notes
    -----
    `counts`: ``hits``, ``misses``, ``late``, ``rejected_<reason>``, ``removed``, ``stored``,
    ``no_space``, ``<call>_failed``; ``down`` and ``full``, keys that were not even asked for;
    ``starts`` and ``hung`` of the client process; ``bytes_in``, ``bytes_out``.
    """

    def __init__(
        self,
        settings: MooncakeSettings,
        transferred: Callable[[int, float], None] | None = None,
    ) -> None:
        require_mooncake()
        self.counts = Counts()
        self.settings = settings
        self._meter = Meter(transferred or (lambda size, seconds: None))
        self._link = Link(settings, self.counts)

    @property
    def up(self) -> bool:
        """True while the store answers, as far as is known."""
        return self._link.up

    @property
    def pending(self) -> int:
        """Calls that are queued or under way."""
        return self._link.pending

    @property
    def queued_bytes(self) -> int:
        """Bytes of rows that wait to be sent; at most ``settings.queue_bytes``."""
        return self._link.queued_bytes

    def wait_until_up(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the store; for tools and tests, not for engines."""
        return self._link.wait_until_up(timeout)

    def exists(self, refs: Sequence[ChunkRef], timeout: float) -> Ticket[bool]:
        """See `Tier.exists`."""
        ticket = Ticket(len(refs), False, timeout)
        for first in range(0, len(refs), _EXISTS_KEYS):
            batch = refs[first : first + _EXISTS_KEYS]
            self._submit(Exists(batch, ticket, first, self.counts), ticket, first, len(batch))
        return ticket

    def get(self, refs: Sequence[ChunkRef], timeout: float, receive: Receive) -> Ticket[bool]:
        """See `Tier.get`; one call is at most ``batch_keys`` keys and 8 MiB, or one chunk."""
        ticket = Ticket(len(refs), False, timeout)
        for first, batch in self._batches(refs, lambda ref: ref):
            call = Get(batch, ticket, first, self.counts, receive, self.discard, self._meter)
            self._submit(call, ticket, first, len(batch))
        return ticket

    def put(self, chunks: Sequence[ChunkRows], timeout: float) -> Ticket[bool]:
        """See `Tier.put`; the rows are copied when their turn comes, in a thread of the tier."""
        ticket = Ticket(len(chunks), False, timeout)
        for first, batch in self._batches(chunks, lambda chunk: chunk.ref):
            call = Put(batch, ticket, first, self.counts)
            self._submit(call, ticket, first, len(batch))
        return ticket

    def discard(self, ref: ChunkRef) -> bool:
        """See `Tier.discard`."""
        return self._submit(Remove([ref], None, 0, self.counts), None, 0, 1)

    def close(self) -> None:
        """End the client process; calls that are under way become misses."""
        self._link.close()

    def _submit(self, call: Call, ticket: Ticket[bool] | None, first: int, size: int) -> bool:
        if max(call.sizes, default=0) > self.settings.arena_bytes // 2:
            self.counts.add("full", size)
        elif self._link.submit(call):
            return True
        if ticket is not None:
            for index in range(first, first + size):
                ticket.fail(index)
        return False

    def _batches(
        self, items: Sequence[T], ref_of: Callable[[T], ChunkRef]
    ) -> Iterator[tuple[int, Sequence[T]]]:
        """Cut `items` by number and by bytes, so that several calls share the room."""
        most = min(_CALL_BYTES, self.settings.arena_bytes // 8)
        first, size = 0, 0
        for index, item in enumerate(items):
            needed = encoded_bytes(ref_of(item))
            if index > first and (
                size + needed > most or index - first == self.settings.batch_keys
            ):
                yield first, items[first:index]
                first, size = index, 0
            size += needed
        if first < len(items):
            yield first, items[first:]
