"""Prompts in order -> what a prefix cache and irminsul would each have reused of them.

Must not know files, tokenizers or reports. The irminsul side is the real registry behind a tree
that behaves as an engine's does: it inserts, splits and evicts, and the registry mirrors it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from irminsul import ChunkParams, Compute, Namespace, Policy, Registry, Reuse, ReusePlan
from irminsul._history import moved
from irminsul.traces.radix import Node, Part, RadixCache

__all__ = ["IrminsulCache", "Outcome"]

TokenArray = npt.NDArray[np.uint32]

_UNBOUNDED = 1 << 40


@dataclass(frozen=True, slots=True)
class Outcome:
    """What serving one prompt took; all but the last two in tokens.

    Attributes
    ----------
    prompt, prefix, reused : int
        Prompt length, exact prefix, tokens reused at a shifted position or in another context.
    spans, depth : int
        Reused spans in the plan, and the largest approximation depth that the prompt now has.
    """

    prompt: int
    prefix: int
    reused: int
    spans: int
    depth: int

    @property
    def computed(self) -> int:
        """Tokens left for the engine."""
        return self.prompt - self.prefix - self.reused


class _Mirror:
    """Repeat every change of the tree in a registry."""

    def __init__(self, registry: Registry, namespace: Namespace) -> None:
        self._registry = registry
        self._namespace = namespace
        self.nodes: dict[int, Node] = {}

    def added(self, node: Node) -> None:
        parent = node.parent.key if node.parent is not None and node.parent.parent else None
        self._registry.add(
            node.key,
            parent,
            node.tokens,
            namespace=self._namespace,
            base_position=node.start,
            hops=node.hops,
            depth=node.depth,
        )
        self.nodes[node.key] = node

    def split(self, node: Node, head: Node) -> None:
        self._registry.split(node.key, len(head.tokens), head.key)
        self.nodes[head.key] = head

    def removed(self, node: Node) -> None:
        self._registry.discard(node.key)
        del self.nodes[node.key]


class IrminsulCache:
    """A prefix cache that also reuses content at other positions.

    Parameters
    ----------
    capacity : int or None
        Tokens that are kept at most; None keeps everything.
    params, policy
        As for `irminsul.Registry`.
    """

    def __init__(
        self,
        capacity: int | None = None,
        params: ChunkParams | None = None,
        policy: Policy | None = None,
    ) -> None:
        # The registry holds on to parts of removed runs for a while, hence the factor.
        tokens = _UNBOUNDED if capacity is None else 2 * capacity
        self.registry = Registry(tokens, params or ChunkParams(), policy or Policy())
        self._namespace = Namespace(model="replay")
        self._mirror = _Mirror(self.registry, self._namespace)
        self.tree = RadixCache(capacity, self._mirror)

    def serve(self, tokens: TokenArray) -> Outcome:
        """Look a prompt up, then keep its rows.

        Parameters
        ----------
        tokens : uint32 [n], n >= 1

        Notes
        -----
        The last token is always computed, by a prefix cache too.
        """
        matched, node = self.tree.match(tokens)
        prefix = min(matched, len(tokens) - 1)
        with self.registry.lookup(tokens, namespace=self._namespace, prefix_len=prefix) as plan:
            parts = list(_parts(plan, _path_depth(node), prefix))
            self._touch_donors(plan)
            spans = sum(isinstance(segment, Reuse) for segment in plan.segments)
            reused = plan.reused_tokens
        self.tree.insert(tokens, parts)
        depth = max(part.depth for part in parts)
        return Outcome(len(tokens), prefix, reused, spans, depth)

    def _touch_donors(self, plan: ReusePlan) -> None:
        """Donors are read, so an engine would count them as used."""
        for segment in plan.segments:
            if isinstance(segment, Reuse):
                for piece in segment.pieces:
                    self.tree.touch(self._mirror.nodes[piece.node])


def _path_depth(node: Node) -> int:
    depth, above = node.depth, node.parent
    while above is not None:
        depth = max(depth, above.depth)
        above = above.parent
    return depth


def _parts(plan: ReusePlan, depth: int, prefix: int) -> Iterator[Part]:
    """Cut the new rows where their history changes.

    A computed row is as far from an exact one as the furthest row that it attended to.
    """
    if prefix:
        yield Part(prefix, 0, depth)
    for segment in plan.segments:
        if isinstance(segment, Compute):
            yield Part(segment.end, 0, depth)
            continue
        hops, own = moved(segment.hops, segment.depth, segment.delta)
        depth = max(depth, own)
        yield Part(segment.target + segment.length, hops, own)
