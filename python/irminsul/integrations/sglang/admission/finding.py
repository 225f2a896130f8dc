"""A prompt -> the spans of it that live tree rows can serve, within limits and worth their cost.

Knows the registry's plans and the mirror; must not know batches, tensors or SGLang's scheduler.

Spans are found when a request is admitted and followed once more when its slots are known.
"""

from __future__ import annotations

from collections.abc import Sequence

from irminsul import Namespace, Reuse
from irminsul.integrations.sglang.admission.costs import Costs
from irminsul.integrations.sglang.agreement import NOTHING, Agreement, digest_of
from irminsul.integrations.sglang.compat import prompt_tokens
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.spans import Found, Limits, Span, Window
from irminsul.integrations.sglang.tree.mirror import TreeMirror
from irminsul.integrations.sglang.tree.nodes import ids_of


def find_spans(
    window: Window,
    mirror: TreeMirror,
    namespace: Namespace,
    limits: Limits,
    metrics: Metrics,
) -> None:
    """Fill `window` with what the registry can serve of it.

    A request asks again in every round and on every attempt to be admitted; while nothing was
    recorded since, what was found then is followed through the tree instead of looked up again.

    The last token of a round is never reused: a row without a token to compute would have no
    logits, and the whole prompt's last token decides the answer.
    """
    known: Found | None = getattr(window.request, "irm_found", None)
    if known is None or known.version != mirror.version or known.start > window.start:
        spans = _looked_up(window, mirror, namespace, limits, metrics)
        known = Found(mirror.version, mirror.changes, window.start, spans)
        window.request.irm_found = known
        window.spans = list(spans)
    else:
        window.spans = [
            span.part(max(span.start, window.start), span.end)
            for span in known.spans
            if span.end > window.start
        ]
    window.changes = known.changes
    follow(window, mirror, metrics)
    if window.spans and window.spans[-1].end >= window.end:
        window.cut(window.end)


def _looked_up(
    window: Window, mirror: TreeMirror, namespace: Namespace, limits: Limits, metrics: Metrics
) -> list[Span]:
    tokens = prompt_tokens(window.request)
    with metrics.timed("lookup_seconds"):
        looked_up = mirror.registry.lookup(
            ids_of(tokens), namespace=namespace, prefix_len=window.start
        )
    with looked_up as plan:
        found = [part for part in plan.segments if isinstance(part, Reuse)]
    spans = []
    for reuse in found:
        target, source, length = reuse.target, reuse.source, reuse.length
        if max(target, source) + length > limits.positions:
            metrics.fallback("beyond_rotation_table")
            continue
        rows = mirror.rows(reuse.pieces, source, tokens, target)
        if rows is None:
            metrics.fallback("stale", "a planned donor is not what was recorded; computing")
            continue
        given = target, target + length, target - source, reuse.hops, reuse.depth, tuple(rows)
        spans.append(Span(*given))
    return spans


def follow(window: Window, mirror: TreeMirror, metrics: Metrics) -> None:
    """Find the rows of `window` where they are now; what was evicted is computed."""
    if window.changes == mirror.changes:
        return
    window.changes = mirror.changes
    tokens = prompt_tokens(window.request)
    live = []
    for span in window.spans:
        source = span.start - span.delta
        # Rows on the host are held where they are by their lease.
        rows = span.rows if span.on_host else mirror.follow(span.rows, source, tokens, span.start)
        if rows is None:
            metrics.add("evicted_spans", 1)
        else:
            live.append(span._replace(rows=tuple(rows)))
    window.spans = live


def keep_worthwhile(window: Window, costs: Costs, metrics: Metrics) -> None:
    """Give spans back to computation that would take longer to move than to compute."""
    if not window.spans:
        return
    kept = costs.worthwhile(window.start, window.end, [span[:2] for span in window.spans])
    if len(kept) < len(window.spans):
        metrics.add("unprofitable_spans", len(window.spans) - len(kept))
        window.spans = [span for span in window.spans if span[:2] in kept]


def digest(windows: Sequence[Window]) -> int:
    """Return a number that two ranks share when they reuse the same rows; 0 is no reuse."""
    if not any(window.spans for window in windows):
        return NOTHING
    numbers = []
    for window in windows:
        numbers += [window.start, window.end, window.unmet, len(window.spans)]
        for span in window.spans:
            numbers += [span.start, span.end, span.delta, span.hops, span.depth, len(span.rows)]
            for node, offset, count in span.rows:
                # Nodes of a tree are the same by their place, chunks in host memory are not.
                numbers += [getattr(node, "number", 0), offset, count]
    return digest_of(numbers)


def agreed(windows: Sequence[Window], agreement: Agreement) -> bool:
    """Return whether every rank plans `windows` alike; collective where there are several."""
    return agreement.ranks == 1 or agreement.agree(digest(windows))


def cut_to_limits(windows: Sequence[Window], limits: Limits, metrics: Metrics) -> None:
    """Give the shortest spans back to computation until the batch keeps its limits."""
    if not any(window.spans for window in windows):
        return
    least = limits.min_span
    for window in windows:
        window.spans = [s for s in window.spans if s.cut or s.end - s.start >= least]
    while any(window.spans for window in windows) and _exceeds(windows, limits):
        owner = min(
            (window for window in windows if window.spans),
            key=lambda window: min(span.length for span in window.spans),
        )
        owner.spans.remove(min(owner.spans, key=lambda span: span.length))
        metrics.add("dropped_spans", 1)


def _exceeds(windows: Sequence[Window], limits: Limits) -> bool:
    most = sum(len(window.spans) + 1 for window in windows)
    if most <= limits.rows and most * max(w.end for w in windows) <= limits.row_tokens:
        return False  # sure without a look at the holes
    return not limits.hold(windows)
