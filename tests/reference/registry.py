"""Host operations -> a plain model of the donors, and a check of plans against it.

Knows nothing of chunks: it says what a plan may contain, not how much a lookup has to find.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass
class Node:
    """Tokens whose rows lie at the positions from `base` on."""

    tokens: list[int]
    parent: int | None
    namespace: str
    base: int
    hops: int = 0
    depth: int = 0


class Model:
    """All live nodes by id; a removed parent leaves its children as roots."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}

    def add(self, node: int, entry: Node) -> None:
        self.nodes[node] = entry

    def children(self, node: int) -> list[int]:
        return [child for child, entry in self.nodes.items() if entry.parent == node]

    def split(self, node: int, at: int, head: int) -> None:
        entry = self.nodes[node]
        self.nodes[head] = replace(entry, tokens=entry.tokens[:at])
        self.nodes[node] = replace(
            entry, tokens=entry.tokens[at:], parent=head, base=entry.base + at
        )

    def remove(self, node: int) -> None:
        for child in self.children(node):
            self.nodes[child].parent = None
        del self.nodes[node]

    def forget(self, namespace: str) -> None:
        for node in [n for n, entry in self.nodes.items() if entry.namespace == namespace]:
            self.remove(node)

    def path(self, node: int | None) -> list[int]:
        """Return the tokens from the root to the end of `node`."""
        if node is None:
            return []
        entry = self.nodes[node]
        return self.path(entry.parent) + entry.tokens

    def before(self, node: int, offset: int) -> int | None:
        """Return the id whose row precedes an offset at the preceding position, if there is one."""
        entry = self.nodes[node]
        if offset > 0:
            return entry.tokens[offset - 1]
        parent = self.nodes.get(entry.parent) if entry.parent is not None else None
        if parent is None or parent.base + len(parent.tokens) != entry.base:
            return None
        return parent.tokens[-1]

    def after(self, node: int, offset: int) -> set[int]:
        """Return the ids whose rows follow an offset at the next position."""
        entry = self.nodes[node]
        if offset < len(entry.tokens):
            return {entry.tokens[offset]}
        end = entry.base + len(entry.tokens)
        children = [self.nodes[child] for child in self.children(node)]
        return {child.tokens[0] for child in children if child.base == end}


def check_plan(
    plan: Any, prompt: list[int], prefix_len: int, namespace: str, model: Model, policy: Any
) -> None:
    """Assert everything that a plan promises."""
    at = prefix_len
    reused = 0
    for segment in plan.segments:
        if hasattr(segment, "pieces"):
            assert segment.target == at
            _check_reuse(segment, prompt, namespace, model, policy)
            at += segment.length
            reused += segment.length
        else:
            assert segment.start == at < segment.end
            at = segment.end
    assert at == len(prompt)
    assert plan.reused_tokens == reused
    assert plan.computed_tokens == len(prompt) - prefix_len - reused
    spans = [segment for segment in plan.segments if hasattr(segment, "pieces")]
    assert len(spans) <= policy.max_segments


def _check_reuse(reuse: Any, prompt: list[int], namespace: str, model: Model, policy: Any) -> None:
    assert reuse.length >= policy.min_span
    assert reuse.target >= policy.sink_tokens
    assert reuse.target + reuse.length < len(prompt)
    assert reuse.delta == reuse.target - reuse.source
    assert reuse.delta == 0 or reuse.source >= policy.sink_tokens
    at = 0
    for piece in reuse.pieces:
        entry = model.nodes[piece.node]
        rows = entry.tokens[piece.offset : piece.offset + piece.length]
        assert len(rows) == piece.length > 0
        assert rows == prompt[reuse.target + at : reuse.target + at + piece.length]
        assert entry.base + piece.offset == reuse.source + at
        assert entry.namespace == namespace
        assert entry.hops <= min(reuse.hops, policy.max_hops)
        assert entry.depth <= min(reuse.depth, policy.max_depth)
        at += piece.length
    assert at == reuse.length


def check_maximal(plan: Any, prompt: list[int], prefix_len: int, model: Model, policy: Any) -> None:
    """Assert that no span could be longer; for policies without recomputed heads and caps."""
    previous_end = prefix_len
    spans = [segment for segment in plan.segments if hasattr(segment, "pieces")]
    ends = {span.target for span in spans}
    for span in spans:
        first, last = span.pieces[0], span.pieces[-1]
        end = span.target + span.length
        if end < len(prompt) - 1 and end not in ends:
            assert prompt[end] not in model.after(last.node, last.offset + last.length)
        floor = max(previous_end, policy.sink_tokens)
        at_sink = span.delta != 0 and span.source == policy.sink_tokens
        if span.target > floor and not at_sink:
            assert prompt[span.target - 1] != model.before(first.node, first.offset)
        previous_end = end
