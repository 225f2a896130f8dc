"""Calls in order -> what two caches made of each, summed per file, session and turn.

Must not know files, tokenizers or how a report looks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from irminsul import Policy
from irminsul.traces.bound import SeenGrams
from irminsul.traces.causes import Break, BreakFinder
from irminsul.traces.corpus import TokenizedCall
from irminsul.traces.radix import RadixCache
from irminsul.traces.reader import Call
from irminsul.traces.replay import IrminsulCache

__all__ = ["Analyzer", "Cause", "Totals"]

# Turns beyond this one are summed together, and so are sessions: memory stays bounded.
MAX_TURNS = 64
MAX_SESSIONS = 100_000
OTHERS = "(all others)"


@dataclass(slots=True)
class Totals:
    """Sums over calls, in tokens but for ``calls`` and ``spans``.

    Attributes
    ----------
    calls, prompt : int
    prefix, reused : int
        Exact prefix, and reuse beyond it, with everything kept.
    bound : int
        What any method could reuse, the prefix included.
    finite_prefix : int
        What a prefix cache alone finds at the given capacity.
    finite_irminsul_prefix, finite_reused : int
        The two parts of what irminsul finds at the same capacity.
    spans : int
        Reused spans; a prompt of ``s`` spans has at most ``s + 1`` holes.
    attention : int
        Sum over calls of computed tokens times half the prompt, for cost estimates, with
        irminsul; `attention_prefix` is the same with the prefix cache alone.
    """

    calls: int = 0
    prompt: int = 0
    prefix: int = 0
    reused: int = 0
    bound: int = 0
    finite_prefix: int = 0
    finite_irminsul_prefix: int = 0
    finite_reused: int = 0
    spans: int = 0
    attention: int = 0
    attention_prefix: int = 0

    @property
    def computed(self) -> int:
        """Tokens left for the engine with irminsul and everything kept."""
        return self.prompt - self.prefix - self.reused

    def add(self, other: Totals) -> None:
        """Add the sums of `other`."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class Cause:
    """How often prefixes broke for one reason, what that cost, and the costliest example."""

    count: int = 0
    lost_tokens: int = 0
    example: Break | None = None

    def add(self, found: Break) -> None:
        """Count one break."""
        self.count += 1
        self.lost_tokens += found.lost_tokens
        if self.example is None or found.lost_tokens > self.example.lost_tokens:
            self.example = found


@dataclass(slots=True)
class Analyzer:
    """Feed it the calls of one log in order, then read its fields.

    Parameters
    ----------
    capacity : int or None
        Tokens that the finite caches hold; None leaves them out.
    policy : Policy or None
        Limits on reuse; the default ones when None.
    """

    capacity: int | None = None
    policy: Policy | None = None
    total: Totals = field(default_factory=Totals)
    turns: dict[int, Totals] = field(default_factory=dict)
    sessions: dict[str, Totals] = field(default_factory=dict)
    causes: dict[str, Cause] = field(default_factory=dict)
    _caches: _Caches = field(init=False, repr=False)
    _breaks: BreakFinder = field(default_factory=BreakFinder, repr=False)

    def __post_init__(self) -> None:
        self._caches = _Caches(self.capacity, self.policy)

    def feed(self, call: Call | None, tokenized: TokenizedCall) -> Totals:
        """Serve one call.

        Parameters
        ----------
        call : Call or None
            The request as logged, for the causes of prefix breaks; None when only ids are known.
        tokenized : TokenizedCall

        Returns
        -------
        Totals
            Of this call alone.
        """
        sums = self._caches.serve(tokenized)
        self.total.add(sums)
        turn = min(tokenized.turn, MAX_TURNS)
        self.turns.setdefault(turn, Totals()).add(sums)
        known = tokenized.session in self.sessions or len(self.sessions) < MAX_SESSIONS
        session = tokenized.session if known else OTHERS
        self.sessions.setdefault(session, Totals()).add(sums)
        if found := self._breaks.find(call, tokenized):
            self.causes.setdefault(found.kind, Cause()).add(found)
        return sums


class _Caches:
    """The simulated caches, side by side."""

    def __init__(self, capacity: int | None, policy: Policy | None) -> None:
        self._policy = policy or Policy()
        self._endless = IrminsulCache(policy=self._policy)
        self._seen = SeenGrams()
        self._prefix = RadixCache(capacity) if capacity else None
        self._finite = IrminsulCache(capacity, policy=self._policy) if capacity else None

    def serve(self, call: TokenizedCall) -> Totals:
        tokens, length = call.tokens, len(call.tokens)
        served = self._endless.serve(tokens)
        marks = self._seen.mark(tokens, served.prefix)
        reachable = max(served.prefix, min(self._policy.sink_tokens, length))
        bound = served.prefix + int(np.count_nonzero(marks[reachable:]))
        half = length // 2
        sums = Totals(
            calls=1,
            prompt=length,
            prefix=served.prefix,
            reused=served.reused,
            # Spans below the bound's 64 tokens can exceed it.
            bound=max(bound, served.prefix + served.reused),
            spans=served.spans,
            attention=served.computed * half,
            attention_prefix=(length - served.prefix) * half,
        )
        if self._prefix is not None and self._finite is not None:
            sums.finite_prefix = min(self._prefix.match(tokens)[0], length - 1)
            self._prefix.insert(tokens)
            finite = self._finite.serve(tokens)
            sums.finite_irminsul_prefix, sums.finite_reused = finite.prefix, finite.reused
        return sums
