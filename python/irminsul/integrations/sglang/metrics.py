"""Events of the data path -> counters, times, rate-limited log lines, and SGLang's /metrics.

Must not know how reuse works; names and helps are all there is here.

Prometheus is imported late: SGLang sets the multiprocess folder first, and a counter made before
that would never be seen.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger(__name__)

_PREFIX = "irminsul:"

# Counters; /metrics adds ``_total``.
_HELP = {
    "reused_tokens": "Prompt tokens whose KV rows were moved instead of computed.",
    "computed_tokens": "Prompt tokens computed in batches that reused others.",
    "relocated_tokens": "KV rows handed to the copy that moves them.",
    "borrowed_tokens": "Prompt tokens whose rows are read where they lie, part of reused_tokens.",
    "unborrowed_spans": "Spans moved because no more requests may borrow at the same time.",
    "spans": "Contiguous runs of reused tokens.",
    "rows": "Rows that planned batches were expanded to, one per hole.",
    "planned_batches": "Prefill batches that reused something.",
    "recorded_tokens": "Tokens recorded as donors.",
    "split_batches": "Batches computed in several forwards because nothing could be moved.",
    "dropped_spans": "Spans computed after all because a limit on rows was reached.",
    "unprofitable_spans": "Spans computed after all because moving them would take longer.",
    "relinked_tokens": "Moved rows computed again for an earlier mention that they lacked.",
    "unrelinked_tokens": "Rows that lack a mention and for which a batch had no room.",
    "evicted_spans": "Spans computed after all because their donors had left the tree.",
    "late_plans": "Decode plans of flashinfer that waited for the copy of the last one.",
    "registry_evictions": "Donors that the registry forgot to make room.",
    "fallback": "Times reuse was given up, by reason.",
    "tier_reused_tokens": "Prompt tokens whose rows came from host memory, part of reused_tokens.",
    "tier_written_tokens": "Tokens whose rows were copied to the tiers behind the engine.",
    "tier_skipped_tokens": "Tokens that were not copied because too many rows were locked.",
    "tier_held_requests": "Requests that waited in the queue for rows from the store.",
    "tier_events": "What happened to chunks in each tier.",
}

# Labels beside those of every counter.
_EXTRA_LABELS = {"fallback": ["reason"], "tier_events": ["tier", "event"]}

# Histograms: help and upper bounds of the buckets.
_SECONDS = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 1.0)
_OBSERVED: dict[str, tuple[str, tuple[float, ...]]] = {
    "plan_seconds": ("Host time to plan one batch, lookups included.", _SECONDS),
    "lookup_seconds": ("Host time to look one prompt up.", _SECONDS),
    "relocate_seconds": ("Host time to start moving one batch's rows.", _SECONDS),
    "tier_wait_seconds": ("Time a request waited in the queue for rows from the store.", _SECONDS),
    "rows_per_forward": (
        "Rows of one planned batch.",
        (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
    ),
}

_GAUGES = {
    "registry_tokens": "Tokens the registry remembers.",
    "registry_capacity_tokens": "Most tokens the registry remembers.",
    "reuse_active": "1 while moved text is reused, 0 while the registry is out of step.",
    "borrowing_requests": "Requests that read pages of others where they lie.",
    "saved_slots": "KV slots that such requests do without.",
    "tier_host_bytes": "Bytes of host memory that chunks take.",
    "tier_store_up": "1 while the store across hosts answers.",
    "tier_link_bytes_per_second": "Speed of fetches from the store, as the cost model believes it.",
}

# Gauges that tell of what may never happen: 0 from the start.
_NONE_YET = ("borrowing_requests", "saved_slots")

# Published under labels that are looked up each time; the others are kept with theirs.
_UNBOUND = _EXTRA_LABELS.keys() | _GAUGES.keys()

_REGISTRY_INTERVAL = 1.0


class _Timed:
    """A block whose seconds are observed; a class, since a generator costs the hot path 2 us."""

    def __init__(self, metrics: Metrics, name: str) -> None:
        self._metrics, self._name = metrics, name

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._metrics.observe(self._name, time.perf_counter() - self._began)


class Metrics:
    """Counters of one scheduler process; mirrors them to Prometheus when asked.

    Parameters
    ----------
    interval
        Seconds between two log lines of one kind.
    prometheus
        Also publish ``irminsul:<name>``; counters end in ``_total``.
    labels
        Label names and values on everything published.
    """

    def __init__(
        self, interval: float, *, prometheus: bool = False, labels: dict[str, str] | None = None
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.fallbacks: Counter[str] = Counter()
        self.gauges: dict[str, float] = {}
        # Rows are written behind, and counted, in another thread than the scheduler's.
        self._lock = threading.Lock()
        self._interval = interval
        self._last: dict[str, float] = {}
        self._told: Counter[str] = Counter()
        self._labels = dict(labels or {})
        self._published: dict[str, Any] = self._publish() if prometheus else {}

    def add(self, name: str, amount: int) -> None:
        """Add `amount` to counter `name`."""
        with self._lock:
            self.counts[name] += amount
        if amount:
            self._tell(name, "inc", amount)

    def observe(self, name: str, value: float) -> None:
        """Add one `value` to histogram `name`."""
        self._tell(name, "observe", value)

    def gauge(self, name: str, value: float) -> None:
        """Set gauge `name`."""
        self.gauges[name] = value
        self._tell(name, "set", value)

    def _tell(self, name: str, verb: str, value: float, **labels: str) -> None:
        """Publish, if anything is; a failure (a full disk) is told and ends nothing."""
        metric = self._published.get(name)
        if metric is None:
            return
        try:
            if name in _UNBOUND:
                metric = metric.labels(**self._labels, **labels)
            getattr(metric, verb)(value)
        except Exception:
            if self.due("publishing", self._interval):
                logger.warning("irminsul: %s was not published", name, exc_info=True)

    def timed(self, name: str) -> _Timed:
        """Observe how many seconds a ``with`` block takes, also when it raises."""
        return _Timed(self, name)

    def sample(self, stats: Mapping[str, int], *, active: bool) -> None:
        """Publish the registry's own counts, at most once a second, and tell the log.

        Parameters
        ----------
        stats
            What `irminsul.Registry.stats` returns.
        active
            False while the mirror of the tree is out of step and nothing is reused.
        """
        self.gauge("registry_tokens", stats["tokens"])
        self.gauge("registry_capacity_tokens", stats["capacity_tokens"])
        self.gauge("reuse_active", float(active))
        evicted = stats["evicted_nodes"] - self.counts["registry_evictions"]
        self.add("registry_evictions", evicted)
        if self.due("summary", self._interval):
            self._summarise()

    def due(self, kind: str, interval: float = _REGISTRY_INTERVAL) -> bool:
        """Return whether `interval` seconds have passed since this last returned True."""
        now = time.monotonic()
        if now - self._last.get(kind, -interval) < interval:
            return False
        self._last[kind] = now
        return True

    def fallback(self, reason: str, message: str = "", *args: object) -> None:
        """Count a fallback, and log `message` with a traceback if one is being handled.

        The log is limited to one line per reason and interval: on the data path a repeated
        failure must not become a second one.
        """
        with self._lock:
            self.fallbacks[reason] += 1
        self._tell("fallback", "inc", 1, reason=reason)
        if message and self.due(f"fallback {reason}", self._interval):
            logger.warning("irminsul: " + message, *args, exc_info=sys.exc_info()[0] is not None)

    def events(self, tier: str, counts: Mapping[str, int]) -> None:
        """Publish what a tier has counted itself since it was last given here.

        Parameters
        ----------
        tier
            Its name.
        counts
            All its counters, which only grow.
        """
        for event, total in counts.items():
            name = f"tier_{tier}_{event}"
            with self._lock:
                new = total - self.counts[name]
                self.counts[name] = total
            if new:
                self._tell("tier_events", "inc", new, tier=tier, event=event)

    def snapshot(self) -> dict[str, Any]:
        """Return all counters as plain numbers."""
        with self._lock:
            return {**self.counts, "fallback": dict(self.fallbacks)}

    def _summarise(self) -> None:
        """Log what was reused since the last such line, if anything was."""
        with self._lock:
            counts = self.counts.copy()
        new, self._told = counts - self._told, counts
        if not new["planned_batches"]:
            return
        logger.info(
            "irminsul: %d of %d prompt tokens reused in %d batches, %d spans; %d tokens known",
            new["reused_tokens"],
            new["reused_tokens"] + new["computed_tokens"],
            new["planned_batches"],
            new["spans"],
            self.gauges["registry_tokens"],
        )

    def _publish(self) -> dict[str, Any]:
        import prometheus_client as client

        names = list(self._labels)
        made: dict[str, Any] = {
            name: client.Counter(_PREFIX + name, text, [*names, *_EXTRA_LABELS.get(name, ())])
            for name, text in _HELP.items()
        }
        for name, (text, bounds) in _OBSERVED.items():
            made[name] = client.Histogram(_PREFIX + name, text, names, buckets=bounds)
        for name, text in _GAUGES.items():
            # One file per process: without a mode each scheduler that ever lived would be listed.
            made[name] = client.Gauge(_PREFIX + name, text, names, multiprocess_mode="mostrecent")
        # With its labels each is shown as 0 from the start, so that a rate of what never happens is
        # not missing data, and needs no search for them on the data path.
        for name in made.keys() - _UNBOUND:
            made[name] = made[name].labels(**self._labels)
        for name in _NONE_YET:
            made[name].labels(**self._labels).set(0)
        return made
