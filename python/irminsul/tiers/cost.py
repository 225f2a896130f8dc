"""Measured transfers and prefills -> which remote chunks are worth fetching.

Must not know tiers or engines: bytes, seconds and tokens.

A chunk is worth its fetch when its bytes arrive sooner than its tokens are computed. Both speeds
are measured where they happen and averaged with exponentially falling weights, so a link that slows
down stops being used, and one small fetch now and then notices when it is fast again. The averages
are geometric: speeds differ by factors, and a link that is a hundred times faster than believed
should not need a hundred fetches to say so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from irminsul.errors import InvalidParams

__all__ = ["Candidate", "CostModel", "Speeds"]


# Below what any clock here resolves; keeps averages finite.
_LEAST_S = 1e-7


@dataclass(frozen=True)
class Candidate:
    """A chunk that could be fetched.

    Parameters
    ----------
    size_bytes : int
        What travels.
    tokens : int
        What need not be computed.
    """

    size_bytes: int
    tokens: int


@dataclass(frozen=True)
class Speeds:
    """What is known at one moment.

    Parameters
    ----------
    link_bytes_per_s : float
        Bytes a second of fetches, their latency included.
    prefill_s_per_token : float
        Seconds that one more prompt token takes to compute.
    """

    link_bytes_per_s: float
    prefill_s_per_token: float

    def fetch_s(self, size_bytes: int) -> float:
        """Seconds that `size_bytes` take to arrive."""
        return size_bytes / self.link_bytes_per_s

    def compute_s(self, tokens: int) -> float:
        """Seconds that `tokens` take to compute."""
        return tokens * self.prefill_s_per_token

    def break_even_bytes_per_s(self, token_bytes: int) -> float:
        """Link speed at which fetching rows of `token_bytes` a token and computing take as long."""
        return token_bytes / self.prefill_s_per_token


class CostModel:
    """Keeps `Speeds` and chooses by them. Thread-safe.

    Parameters
    ----------
    link_bytes_per_s, prefill_s_per_token : float
        First guesses, above 0, until something is measured.
    weight : float
        Share of a new measurement in the average, in (0, 1].
    margin : float
        A fetch must take less than computing divided by this, at least 1.
    probe_s : float
        Seconds without a fetch after which one chunk is fetched whatever it costs.
    clock : callable
        Monotonic seconds.

    Raises
    ------
    InvalidParams
        A number lies outside its range.
    """

    def __init__(
        self,
        link_bytes_per_s: float = 1e9,
        prefill_s_per_token: float = 1e-4,
        *,
        weight: float = 0.2,
        margin: float = 1.2,
        probe_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not (link_bytes_per_s > 0 and prefill_s_per_token > 0):
            raise InvalidParams(
                f"speeds must be above 0, got {link_bytes_per_s} B/s and {prefill_s_per_token} s"
            )
        if not (0 < weight <= 1 and margin >= 1 and probe_s > 0):
            raise InvalidParams(
                f"need 0 < weight <= 1, margin >= 1, probe_s > 0, got {weight}, {margin}, {probe_s}"
            )
        self._speeds = Speeds(float(link_bytes_per_s), float(prefill_s_per_token))
        self._weight = weight
        self._margin = margin
        self._probe_s = probe_s
        self._clock = clock
        self._probed_at = clock()
        self._lock = threading.Lock()

    @property
    def speeds(self) -> Speeds:
        """The averages of now."""
        return self._speeds

    def transferred(self, size_bytes: int, seconds: float) -> None:
        """Learn from a fetch of `size_bytes` that took `seconds`."""
        if size_bytes <= 0 or seconds <= 0:
            return
        with self._lock:
            speed = self._moved(self._speeds.link_bytes_per_s, size_bytes / max(seconds, _LEAST_S))
            self._speeds = Speeds(speed, self._speeds.prefill_s_per_token)
            self._probed_at = self._clock()

    def computed(self, tokens: int, seconds: float) -> None:
        """Learn from a prefill of `tokens` that took `seconds`."""
        if tokens <= 0 or seconds <= 0:
            return
        with self._lock:
            cost = self._moved(self._speeds.prefill_s_per_token, max(seconds, _LEAST_S) / tokens)
            self._speeds = Speeds(self._speeds.link_bytes_per_s, cost)

    def choose(self, candidates: Sequence[Candidate], budget_s: float) -> list[int]:
        """Return the indexes of `candidates` that should be fetched, in order.

        Parameters
        ----------
        candidates : sequence of Candidate
            In the order in which their absence would hurt, for prompts from left to right.
        budget_s : float
            Seconds for which the caller would wait; what cannot arrive in it is not asked for.

        Notes
        -----
        One link carries them one after another, so times add up. Each chunk must win for itself:
        chunks that lose would only delay those that win.
        """
        speeds = self._speeds
        chosen: list[int] = []
        spent = 0.0
        for index, candidate in enumerate(candidates):
            fetch = speeds.fetch_s(candidate.size_bytes)
            if fetch * self._margin > speeds.compute_s(candidate.tokens):
                continue
            if spent + fetch > budget_s:
                break
            spent += fetch
            chosen.append(index)
        if not chosen and candidates and self._may_probe():
            return [0]
        return chosen

    def _moved(self, average: float, sample: float) -> float:
        return float(average ** (1.0 - self._weight) * sample**self._weight)

    def _may_probe(self) -> bool:
        with self._lock:
            now = self._clock()
            if now - self._probed_at < self._probe_s:
                return False
            self._probed_at = now
            return True
