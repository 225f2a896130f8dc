"""Probes and a server -> the answers that prove or disprove reuse, and what follows from them.

Must not know the command line. Everything is concluded from answers. Every request carries a key
of this run, so nothing is flushed, and other traffic neither helps nor is disturbed beyond load.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from irminsul.live.client import Client, Prompt, Reply
from irminsul.live.compare import Difference, differences
from irminsul.live.probes import Probe

__all__ = ["Check", "Evidence", "collect", "compared", "judge"]

_LIKELIEST = 20
# What prompts of one key share without meaning to: a first token that the tokenizer adds, a page.
_SLACK_TOKENS = 64
_MIN_REUSED = 0.8


@dataclass(frozen=True, slots=True)
class Check:
    """One conclusion: what was looked at, whether it held, and the figures."""

    name: str
    passed: bool
    detail: str


@dataclass(slots=True)
class Evidence:
    """All answers, one of each list per probe.

    Attributes
    ----------
    cold, again
        The moved prompt computed in full, twice.
    prefix
        The same prompt after `cold`: an exact-prefix hit.
    donor, moved
        The document behind another header, then the moved prompt.
    foreign
        The moved prompt under a key that has seen nothing.
    opted_out
        The moved prompt, exactly, where the document could be reused.
    frame
        The moved prompt without its document.
    """

    cold: list[Reply] = field(default_factory=list)
    again: list[Reply] = field(default_factory=list)
    prefix: list[Reply] = field(default_factory=list)
    donor: list[Reply] = field(default_factory=list)
    moved: list[Reply] = field(default_factory=list)
    foreign: list[Reply] = field(default_factory=list)
    opted_out: list[Reply] = field(default_factory=list)
    frame: list[Reply] = field(default_factory=list)

    def replies(self) -> Iterator[Reply]:
        """Yield every answer."""
        for name in self.__slots__:
            yield from getattr(self, name)


def collect(
    client: Client,
    probes: list[Probe],
    max_tokens: int,
    nonce: str,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Evidence:
    """Send everything, probe by probe.

    Parameters
    ----------
    client
        Server to ask.
    probes
        Prompts to ask it.
    max_tokens
        Length of the answers that are compared.
    nonce
        Part of every key, so that runs share nothing.
    progress
        Called with the number of probes done and their total.
    """
    evidence = Evidence()

    def ask(prompt: Prompt, key: str, reuse: bool, length: int = max_tokens) -> Reply:
        return client.generate(
            prompt,
            max_tokens=length,
            key=f"verify-{nonce}-{key}",
            reuse=reuse,
            likeliest=_LIKELIEST,
        )

    for number, probe in enumerate(probes):
        evidence.cold.append(ask(probe.moved, "cold", reuse=False))
        evidence.again.append(ask(probe.moved, "again", reuse=False))
        evidence.prefix.append(ask(probe.moved, "cold", reuse=False))
        evidence.donor.append(ask(probe.donor, "moved", reuse=True, length=1))
        evidence.moved.append(ask(probe.moved, "moved", reuse=True))
        evidence.foreign.append(ask(probe.moved, f"foreign-{number}", reuse=True, length=1))
        evidence.opted_out.append(ask(probe.moved, "moved", reuse=False))
        evidence.frame.append(ask(probe.frame, f"frame-{number}", reuse=False, length=1))
        progress(number + 1, len(probes))
    return evidence


def judge(evidence: Evidence, max_kl: float) -> list[Check]:
    """Return the conclusions, in the order in which they are shown."""
    return [
        _reuse_check(evidence),
        _prefix_check(evidence),
        _nothing_check("tenants", evidence.foreign, "tokens crossed to another extra_key"),
        _nothing_check("opt-out", evidence.opted_out, "tokens were reused by exact requests"),
        _nothing_check("fresh text", evidence.donor, "tokens were reused of text never seen"),
        _bounds_check(evidence),
        _fidelity_check(evidence, max_kl),
        _exactness_check(evidence, max_kl),
    ]


def _reuse_check(evidence: Evidence) -> Check:
    shares = [
        moved.cached_tokens / max(1, moved.prompt_tokens - frame.prompt_tokens)
        for moved, frame in zip(evidence.moved, evidence.frame, strict=True)
    ]
    detail = f"{_percent(statistics.median(shares))} of a moved document was reused, at least "
    return Check("reuse", min(shares) >= _MIN_REUSED, detail + _percent(min(shares)))


def _prefix_check(evidence: Evidence) -> Check:
    shares = [reply.cached_tokens / reply.prompt_tokens for reply in evidence.prefix]
    passed = all(share > _MIN_REUSED for share in shares)
    return Check("exact prefix", passed, f"{_percent(min(shares))} of a repeated prompt was cached")


def _nothing_check(name: str, replies: list[Reply], what: str) -> Check:
    most = max(reply.cached_tokens for reply in replies)
    return Check(name, most <= _SLACK_TOKENS, f"{most} {what}")


def _bounds_check(evidence: Evidence) -> Check:
    wrong = [r for r in evidence.replies() if not 0 <= r.cached_tokens < r.prompt_tokens]
    return Check("bounds", not wrong, f"{len(wrong)} answers cached their whole prompt or more")


def _fidelity_check(evidence: Evidence, max_kl: float) -> Check:
    moved = differences(evidence.cold, evidence.moved)
    noise = differences(evidence.cold, evidence.again)
    detail = (
        f"moving changes the first token's distribution by {moved.kl_median:.2g} nats, "
        f"computing it again by {noise.kl_median:.2g}; allowed {max_kl:.2g}"
    )
    return Check("fidelity", moved.kl_median <= max(max_kl, 3 * noise.kl_median), detail)


def _exactness_check(evidence: Evidence, max_kl: float) -> Check:
    """Exact service where moved rows were at hand must be as good as cold."""
    exact = differences(evidence.cold, evidence.opted_out)
    noise = differences(evidence.cold, evidence.again)
    # An approximate row would show as what moving shows; noise of one answer may exceed another's.
    allowed = max(3 * noise.kl_most, 0.1 * max_kl)
    detail = f"exact answers beside moved text differ by {exact.kl_most:.2g} nats at most"
    return Check("exactness", exact.kl_most <= allowed, detail)


def compared(evidence: Evidence) -> dict[str, Difference]:
    """Return how each kind of answer differs from the cold ones."""
    return {
        "cold again": differences(evidence.cold, evidence.again),
        "exact prefix": differences(evidence.cold, evidence.prefix),
        "moved": differences(evidence.cold, evidence.moved),
    }


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
