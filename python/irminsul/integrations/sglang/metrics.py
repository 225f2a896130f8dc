"""Events of the data path -> counters, rate-limited log lines, and SGLang's /metrics.

Must not know how reuse works; names and helps are all there is here.

Prometheus is imported late: SGLang sets the multiprocess folder first, and a counter made before
that would never be seen.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from typing import Any

logger = logging.getLogger(__name__)

_HELP = {
    "reused_tokens": "Prompt tokens whose KV rows were moved instead of computed.",
    "computed_tokens": "Prompt tokens computed in batches that reused others.",
    "spans": "Contiguous runs of reused tokens.",
    "rows": "Rows that planned batches were expanded to, one per hole.",
    "planned_batches": "Prefill batches that reused something.",
    "recorded_tokens": "Tokens recorded as donors.",
    "dropped_spans": "Spans computed after all because a limit on rows was reached.",
    "fallback": "Times reuse was given up, by reason.",
}


class Metrics:
    """Counters of one scheduler process; mirrors them to Prometheus when asked.

    Parameters
    ----------
    interval
        Seconds between two log lines of one kind.
    prometheus
        Also publish ``irminsul:<name>_total``.
    labels
        Label names and values on every published counter.
    """

    def __init__(
        self, interval: float, *, prometheus: bool = False, labels: dict[str, str] | None = None
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.fallbacks: Counter[str] = Counter()
        self._interval = interval
        self._logged: dict[str, float] = {}
        self._labels = dict(labels or {})
        self._published: dict[str, Any] = self._publish() if prometheus else {}

    def add(self, name: str, amount: int) -> None:
        """Add `amount` to counter `name`."""
        self.counts[name] += amount
        if name in self._published and amount:
            self._published[name].labels(**self._labels).inc(amount)

    def fallback(self, reason: str, message: str = "", *args: object) -> None:
        """Count a fallback, and log `message` with a traceback if one is being handled.

        The log is limited to one line per reason and interval: on the data path a repeated
        failure must not become a second one.
        """
        self.fallbacks[reason] += 1
        if "fallback" in self._published:
            self._published["fallback"].labels(**self._labels, reason=reason).inc()
        now = time.monotonic()
        if message and now - self._logged.get(reason, -self._interval) >= self._interval:
            self._logged[reason] = now
            logger.warning("irminsul: " + message, *args, exc_info=sys.exc_info()[0] is not None)

    def snapshot(self) -> dict[str, Any]:
        """Return all counters as plain numbers."""
        return {**self.counts, "fallback": dict(self.fallbacks)}

    def _publish(self) -> dict[str, Any]:
        from prometheus_client import Counter as Published

        names = list(self._labels)
        return {
            name: Published(
                f"irminsul:{name}", text, [*names, "reason"] if name == "fallback" else names
            )
            for name, text in _HELP.items()
        }
