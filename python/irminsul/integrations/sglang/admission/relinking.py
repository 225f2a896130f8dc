"""Spans of a prompt -> the same without the rows that lack an earlier mention, which are computed.

Knows spans, the tree's paths and what batches may be expanded to; must not know batches or tensors.

`irminsul.mentions` decides which rows those are. What a row was computed over is the path from the
tree's root to its node, if that was exact; otherwise only its own span is known. Each chosen row is
a hole of one token, so it is computed in the same forward as all others, over everything before it,
and it is a row of the batch: limits on rows bound how many there can be, the rarest first.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from irminsul import Policy, mentions
from irminsul.integrations.sglang.admission.costs import Costs
from irminsul.integrations.sglang.compat import prompt_tokens
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.settings import Settings
from irminsul.integrations.sglang.spans import Limits, Span, Window
from irminsul.integrations.sglang.tree import options
from irminsul.integrations.sglang.tree.nodes import hold, ids_of, record_of
from irminsul.mentions import Origin

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class Choice:
    """Rows of a request to compute again, the most wanted first, and the spans they lie in.

    A request is planned on every attempt to admit it and in every round, mostly with these spans or
    with parts of them.
    """

    spans: Sequence[tuple[int, int, int]]
    ranked: Positions

    def covers(self, spans: Sequence[tuple[int, int, int]]) -> bool:
        """Return whether each of `spans` (start, end, delta) lies in one of the choice's."""
        if spans == self.spans:
            return True
        starts = [start for start, _, _ in self.spans]
        for start, end, delta in spans:
            at = int(np.searchsorted(starts, start, "right")) - 1
            if at < 0 or end > self.spans[at][1] or delta != self.spans[at][2]:
                return False
        return True


def relink(
    window: Window,
    settings: Settings,
    policy: Policy,
    limits: Limits,
    costs: Costs | None,
    metrics: Metrics,
) -> None:
    """Cut rows out of the spans of `window`, at most the share that its request or `settings` say.

    Parameters
    ----------
    policy
        The registry's: a rest no longer than what one more run costs there is computed as well.
    limits
        What the batch still holds. The least wanted rows beyond it stay moved: `window.unmet`.
    costs
        Where moving with these holes takes longer than computing everything, all is computed.
    """
    share = options.relink_share(window.request, settings)
    if not (share and window.spans):
        return
    ranked = _ranked(window, share)
    kept = _affordable(ranked, window, limits)
    window.again, window.unmet = np.sort(kept).tolist(), len(ranked) - len(kept)
    if not window.again:
        return
    window.spans = without(window.spans, window.again, policy.span_cost)
    if not window.spans or (costs is not None and _dear(window, costs)):
        metrics.add("unprofitable_spans", len(window.spans))
        window.give_up()


def _dear(window: Window, costs: Costs) -> bool:
    """Return whether computing all of `window` takes less time than moving its spans."""
    moving = costs.cheapest(window.holes()) + costs.batch
    return moving > costs.cheapest([(window.start, window.end)])


def without(spans: Sequence[Span], positions: Sequence[int], near: int) -> list[Span]:
    """Cut ascending `positions` out of `spans`, and rests of at most `near` tokens with them."""
    bounds = [(span.start, span.end) for span in spans]
    left = mentions.remaining(bounds, [(at, at + 1) for at in positions])
    found: list[Span] = []
    for span, whole, parts in zip(spans, bounds, left, strict=True):
        if parts == [whole]:
            found.append(span)
        else:
            found += _rests(span, [(low, high) for low, high in parts if high - low > near])
    return found


def _rests(span: Span, parts: Sequence[tuple[int, int]]) -> Iterator[Span]:
    """Yield the ascending `parts` of `span`; hundreds, most of them within one node's rows."""
    _, _, delta, hops, depth, rows, _ = span
    at, run = span.start, iter(rows)
    node, offset, count = next(run)
    for low, high in parts:
        while at + count <= low:
            at += count
            node, offset, count = next(run)
        one = high <= at + count
        own = ((node, offset + low - at, high - low),) if one else span.part(low, high).rows
        yield Span(low, high, delta, hops, depth, own, True)


def new_mentions(window: Window, tokens: array[int]) -> Positions:
    """Return the rows of `window`'s spans that lack an earlier mention, the rarest first."""
    origins: list[Origin] = []
    nodes: list[Any] = []
    facts = []
    numbers: dict[int, int] = {}
    for number, span in enumerate(window.spans):
        at = span.start
        for node, _, count in span.rows:
            origins.append(Origin(at, at + count, at - span.delta))
            if id(node) not in numbers:
                numbers[id(node)] = len(nodes)
                nodes.append(node)
            facts.append((numbers[id(node)], number, span.depth == 0, span.on_host))
            at += count
    node_of, span_of, exact, on_host = np.array(facts, np.int64).reshape(-1, 4).T
    above = _above(nodes)[node_of[:, None], node_of]
    own = (span_of[:, None] == span_of) & (above | (on_host != 0))
    saw = own | (above & (exact != 0)[:, None])
    shared = _shared(nodes, tokens, window.start)
    edges = [0, *sorted({end for end in shared.tolist() if end})]
    prefix = [Origin(low, high, low, False) for low, high in itertools.pairwise(edges)]
    before = (shared[node_of][:, None] >= edges[1:]) & (exact != 0)[:, None]
    size, head = len(prefix) + len(origins), len(prefix)
    everything = np.zeros((size, size), np.bool_)
    everything[head:, :head], everything[head:, head:] = before, saw
    return mentions.new_mentions(ids_of(tokens), [*prefix, *origins], everything)


def _ranked(window: Window, share: float) -> Positions:
    """Return the rows wanted of `window`; those of the last plan when its spans cover these."""
    bounds = [(span.start, span.end, span.delta) for span in window.spans]
    known: Choice | None = getattr(window.request, "irm_relinked", None)
    if known is None or not known.covers(bounds):
        most = round(share * window.reused)
        found = new_mentions(window, prompt_tokens(window.request))[:most] if most else _NOTHING
        window.request.irm_relinked = known = Choice(bounds, found)
    if not (len(bounds) and len(known.ranked)):
        return _NOTHING
    starts, ends, _ = np.array(bounds).T
    span = np.searchsorted(starts, known.ranked, "right") - 1
    inside: Positions = known.ranked[(span >= 0) & (known.ranked < ends[span])]
    return inside


def _affordable(ranked: Positions, window: Window, limits: Limits) -> Positions:
    """Return as many of `ranked` as `limits` leave rows and prefix tokens for."""
    left = limits.less([window], 0)
    first = ranked[: max(0, left.rows)]
    return first[: int(np.searchsorted(np.cumsum(first), left.row_tokens, "right"))]


def _above(nodes: Sequence[Any]) -> NDArray[np.bool_]:
    """Return, for each pair of nodes, whether the path to the first one leads through the second.

    Every node's own path does. Rows on the host have no path.
    """
    numbers = {id(node): number for number, node in enumerate(nodes)}
    found = np.eye(len(nodes), dtype=np.bool_)
    for number, node in enumerate(nodes):
        while (node := getattr(node, "parent", None)) is not None:
            if (other := numbers.get(id(node))) is not None:
                found[number, other] = True
    return found


def _shared(nodes: Sequence[Any], tokens: array[int], most: int) -> Positions:
    """Return, for each node, how many of the first `most` ids its path and `tokens` begin with."""
    known: dict[int, int] = {}
    for node in nodes:
        path = []
        while most and id(node) not in known and (record := record_of(node)) is not None:
            path.append((node, record.start))
            node = node.parent
        length = known.get(id(node), 0)
        for part, start in reversed(path):
            count = min(len(part.key), most - start)
            if start == length and count > 0 and hold(part, 0, tokens, start, count):
                length += count
            known[id(part)] = length
    return np.array([known.get(id(node), 0) for node in nodes], np.int64)


_NOTHING: Positions = np.empty(0, np.int64)
