"""Replays of one side -> the figures that describe it.

Must not know servers or how the figures are shown.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from irminsul.live.replay import Replay

__all__ = ["Summary", "summarise"]


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of one side over all its replays.

    Attributes
    ----------
    calls, failures
        Answered calls, and the others.
    ttft_mean_s, ttft_p50_s, ttft_p95_s, ttft_p99_s
        Seconds to the first token.
    latency_p50_s
        Seconds to the last token.
    calls_per_s, prompt_tokens_per_s, completion_tokens_per_s
        Throughput over the wall time of the replays.
    prompt_tokens, cached_tokens
        Sums; cached are those that the server did not compute.
    """

    calls: int
    failures: int
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p95_s: float
    ttft_p99_s: float
    latency_p50_s: float
    calls_per_s: float
    prompt_tokens_per_s: float
    completion_tokens_per_s: float
    prompt_tokens: int
    cached_tokens: int

    @property
    def cached_share(self) -> float:
        """Part of the prompt tokens that was not computed."""
        return self.cached_tokens / self.prompt_tokens


def summarise(replays: Sequence[Replay]) -> Summary | None:
    """Return the figures of `replays` together, or None when no call was answered."""
    replies = [reply for one in replays for reply in one.replies]
    if not replies:
        return None
    seconds = sum(one.seconds for one in replays)
    first = [reply.first_s for reply in replies]
    prompt = sum(reply.prompt_tokens for reply in replies)
    p50, p95, p99 = (float(value) for value in np.percentile(first, (50, 95, 99)))
    return Summary(
        calls=len(replies),
        failures=sum(len(one.failures) for one in replays),
        ttft_mean_s=statistics.fmean(first),
        ttft_p50_s=p50,
        ttft_p95_s=p95,
        ttft_p99_s=p99,
        latency_p50_s=statistics.median(reply.total_s for reply in replies),
        calls_per_s=len(replies) / seconds,
        prompt_tokens_per_s=prompt / seconds,
        completion_tokens_per_s=sum(reply.completion_tokens for reply in replies) / seconds,
        prompt_tokens=prompt,
        cached_tokens=sum(reply.cached_tokens for reply in replies),
    )
