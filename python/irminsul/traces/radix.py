"""Prompts in order -> a radix prefix cache of finite capacity, with least-recently-used eviction.

Must not know chunks or registries; who wants to mirror the tree passes a listener.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from irminsul._ids import common_prefix

__all__ = ["Listener", "Node", "Part", "RadixCache"]

TokenArray = npt.NDArray[np.uint32]


@dataclass(eq=False, slots=True)
class Node:
    """Tokens below their parent. ``hops`` and ``depth`` as in `irminsul.Registry.add`."""

    key: int
    tokens: TokenArray
    start: int
    parent: Node | None
    hops: int = 0
    depth: int = 0
    used: int = 0
    children: dict[int, Node] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """Position just after the last token."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens up to position ``end`` that share one history of rotations."""

    end: int
    hops: int = 0
    depth: int = 0


class Listener(Protocol):
    """Learns of every change of the tree, in order."""

    def added(self, node: Node) -> None:
        """Take note of a new leaf."""

    def split(self, node: Node, head: Node) -> None:
        """Take note that `head` became the parent of what remains of `node`."""

    def removed(self, node: Node) -> None:
        """Take note that a leaf was evicted."""


class RadixCache:
    """A tree of prompts in which every path is a prompt's prefix.

    Parameters
    ----------
    capacity : int or None
        Tokens that are kept at most; None keeps everything.
    listener : Listener or None
        Told of every change.
    """

    def __init__(self, capacity: int | None = None, listener: Listener | None = None) -> None:
        self._capacity = capacity
        self._listener = listener
        self._root = Node(0, np.empty(0, np.uint32), 0, None)
        self._next_key = 1
        self._clock = 0
        self._leaves: list[tuple[int, int, Node]] = []
        self.tokens = 0
        self.evicted_tokens = 0

    def match(self, tokens: TokenArray) -> tuple[int, Node]:
        """Return the longest cached prefix and the node that ends with it.

        A node is split when the prefix ends inside it; the path is marked used.
        """
        self._clock += 1
        node, at = self._root, 0
        while at < len(tokens) and (child := node.children.get(int(tokens[at]))) is not None:
            equal = common_prefix(child.tokens, tokens[at:])
            at += equal
            node = child if equal == len(child.tokens) else self._split(child, equal)
            node.used = self._clock
            if node is not child:
                break
        return at, node

    def insert(self, tokens: TokenArray, parts: Sequence[Part] | None = None) -> None:
        """Add a prompt; `parts` cover it up to its end in order (default: one part).

        When nothing more can be evicted the rest of the prompt stays out, as in an engine.
        """
        at, node = self.match(tokens)
        for part in parts or [Part(len(tokens))]:
            if part.end <= at:
                continue
            if not self._make_room(part.end - at, node):
                return
            node = self._append(node, tokens[at : part.end], part)
            at = part.end

    def touch(self, node: Node) -> None:
        """Mark a node and its ancestors used now."""
        above: Node | None = node
        while above is not None:
            above.used = self._clock
            above = above.parent

    def _append(self, parent: Node, tokens: TokenArray, part: Part) -> Node:
        # A copy: a view would keep the whole prompt in memory for as long as its last node lives.
        own, key = tokens.copy(), self._new_key()
        node = Node(key, own, parent.end, parent, part.hops, part.depth, self._clock)
        parent.children[int(tokens[0])] = node
        self.tokens += len(tokens)
        self._push(node)
        if self._listener is not None:
            self._listener.added(node)
        return node

    def _split(self, node: Node, at: int) -> Node:
        parent = node.parent
        head = Node(self._new_key(), node.tokens[:at], node.start, parent, node.hops, node.depth)
        head.used = node.used
        if parent is not None:
            parent.children[int(head.tokens[0])] = head
        node.tokens, node.start, node.parent = node.tokens[at:], head.end, head
        head.children[int(node.tokens[0])] = node
        if self._listener is not None:
            self._listener.split(node, head)
        return head

    def _new_key(self) -> int:
        self._next_key += 1
        return self._next_key

    def _push(self, node: Node) -> None:
        heapq.heappush(self._leaves, (node.used, node.key, node))

    def _make_room(self, needed: int, keep: Node) -> bool:
        """Evict unused leaves until `needed` more tokens fit; `keep` and its ancestors stay."""
        if self._capacity is None:
            return True
        kept = []
        while self.tokens + needed > self._capacity and self._leaves:
            used, _, node = heapq.heappop(self._leaves)
            if node.children or node.parent is None:
                continue
            if node.used > used:
                self._push(node)
            elif node is keep:
                kept.append(node)
            else:
                self._evict(node)
        for node in kept:
            self._push(node)
        return self.tokens + needed <= self._capacity

    def _evict(self, node: Node) -> None:
        parent = node.parent
        self.tokens -= len(node.tokens)
        self.evicted_tokens += len(node.tokens)
        if parent is not None:
            del parent.children[int(node.tokens[0])]
            node.parent = None
            if not parent.children and parent.parent is not None:
                self._push(parent)
        if self._listener is not None:
            self._listener.removed(node)
