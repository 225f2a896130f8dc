"""A tree that splits and shrinks -> the same registry, or none at all."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from irminsul import Policy, Registry, Reuse, _core
from irminsul.integrations.sglang.admission import finding
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.spans import Window
from irminsul.integrations.sglang.tree.mirror import TreeMirror
from irminsul.integrations.sglang.tree.nodes import record_of
from irminsul.integrations.sglang.tree.provenance import Moved
from test_planner import LIMITS, NAMESPACE, Key, Node, ids, mirrored, request


def split(mirror: TreeMirror, node: Node, at: int) -> Node:
    """Split as the radix tree does: a new head, and the old node keeps the tail."""
    head = Node([], node.parent, 0)
    head.key = Key(list(node.key.token_ids[:at]))
    head.value, node.value = node.value[:at], node.value[at:]
    node.key = Key(list(node.key.token_ids[at:]))
    node.parent = head
    mirror.guard(mirror.split, node, head, head.parent)
    return head


def reused(mirror: TreeMirror, prompt: list[int]) -> list[tuple[Any, int, int]] | None:
    tokens = array("q", prompt)
    with mirror.registry.lookup(tokens, namespace=NAMESPACE) as plan:
        for part in plan.segments:
            if isinstance(part, Reuse):
                return mirror.rows(part.pieces, part.source, tokens, part.target)
    return None


@pytest.mark.parametrize("at", [1, 39, 40, 41, 200, 339])
def test_rows_are_found_on_both_sides_of_a_split(at: int) -> None:
    document = ids(300, 1)
    mirror, node = mirrored(document)
    whole = node.value.clone()
    head = split(mirror, node, at)
    rows = reused(mirror, ids(60, 2) + document + ids(9, 3))
    assert rows is not None
    slots = [int(slot) for owner, start, n in rows for slot in owner.value[start : start + n]]
    assert slots == whole[40:340].tolist()
    assert {id(owner) for owner, _, _ in rows} <= {id(head), id(node)}


def test_a_deleted_leaf_is_found_no_more() -> None:
    document = ids(300, 1)
    mirror, node = mirrored(document)
    head = split(mirror, node, 200)
    mirror.guard(mirror.delete, node)
    rows = reused(mirror, ids(60, 2) + document + ids(9, 3))
    assert rows is not None
    assert all(owner is head for owner, _, _ in rows)
    mirror.guard(mirror.delete, head)
    assert reused(mirror, ids(60, 2) + document + ids(9, 3)) is None
    assert mirror.registry.stats()["nodes"] == 0


def test_children_continue_depth_and_position() -> None:
    document = ids(300, 1)
    mirror, node = mirrored(document)
    child = Node(ids(100, 5), node, 4000)
    mirror.record(child, node.parent, NAMESPACE, [Moved(350, 360, 1, 2)])
    grandchild = Node(ids(80, 6), child, 4400)
    mirror.record(grandchild, node.parent, NAMESPACE, [])
    record, below = record_of(child), record_of(grandchild)
    assert record is not None
    assert below is not None
    assert (record.start, below.start) == (340, 440)
    assert [(part.length, part.depth) for part in record.segments] == [(10, 0), (10, 2), (80, 2)]
    assert [part.depth for part in below.segments] == [2]


def test_a_node_without_its_prefix_knows_where_and_behind_what_it_was_computed() -> None:
    mirror, root = TreeMirror(Registry(1 << 16, policy=Policy(min_span=8)), Metrics(60.0)), object()
    document = ids(300, 1)
    piece = Node(document, root, 1000)
    # Position 640 of a request whose prefix in the tree was three deep.
    mirror.record(piece, root, NAMESPACE, [Moved(700, 720, 1, 2)], 640, 3)
    record = record_of(piece)
    assert record is not None
    assert (record.start, record.depth) == (640, 3)
    assert [(part.length, part.depth) for part in record.segments] == [(60, 3), (20, 2), (220, 3)]
    head = split(mirror, piece, 64)
    above, tail = record_of(head), record_of(piece)
    assert above is not None
    assert tail is not None
    assert (above.start, above.depth, tail.start) == (640, 3, 704)
    with mirror.registry.lookup(
        array("q", ids(50, 2) + document + ids(9, 3)), namespace=NAMESPACE
    ) as plan:
        found = [part for part in plan.segments if isinstance(part, Reuse)]
    assert {part.source - part.target for part in found} == {640 - 50}
    assert {part.depth for part in found} <= {2, 3}


def test_rows_without_a_namespace_are_no_donors() -> None:
    document = ids(300, 1)
    mirror, _ = mirrored(ids(50, 9))
    leaf = Node(document, object(), 7000)
    mirror.record(leaf, leaf.parent, None, [])
    assert reused(mirror, ids(60, 2) + document + ids(9, 3)) is None
    mirror.guard(mirror.delete, leaf)
    assert not mirror.broken


def test_losing_track_ends_reuse_until_the_tree_is_empty() -> None:
    document = ids(300, 1)
    mirror, node = mirrored(document)

    def fail(*_: Any) -> None:
        raise RuntimeError("cause")

    mirror.guard(fail)
    assert mirror.broken
    assert reused(mirror, ids(60, 2) + document + ids(9, 3)) is None
    mirror.guard(mirror.delete, node)
    mirror.clear()
    assert not mirror.broken
    fresh = Node(document, object(), 0)
    mirror.record(fresh, fresh.parent, NAMESPACE, [])
    assert reused(mirror, ids(60, 2) + document + ids(9, 3)) is not None


def test_ids_that_are_no_tokens_are_skipped() -> None:
    mirror, _ = mirrored(ids(50, 9))
    leaf = Node([-1, 2**40, *ids(200, 3)], object(), 100)
    mirror.record(leaf, leaf.parent, NAMESPACE, [])
    record = record_of(leaf)
    assert record is not None
    assert record.last_key() is None
    window = Window(request(ids(60, 2) + ids(200, 3) + ids(9, 4)), 0, 269)
    finding.find_spans(window, mirror, NAMESPACE, LIMITS, Metrics(60.0))
    assert window.spans == []


class Failing:
    """A registry whose core has a bug: every call ends as a panic does."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: _core._panic(f"{name} lost a node")


@pytest.mark.parametrize("change", ["record", "delete"])
def test_a_bug_in_the_core_ends_reuse_and_not_the_host(change: str) -> None:
    mirror, node = mirrored(ids(300, 1))
    registry, mirror.registry = mirror.registry, Failing()
    if change == "record":
        fresh = Node(ids(300, 2), object(), 0)
        mirror.guard(mirror.record, fresh, fresh.parent, NAMESPACE, [])
    else:
        mirror.guard(mirror.delete, node)
    assert mirror.broken
    mirror.clear()
    assert mirror.broken  # It could not be emptied.
    mirror.registry = registry
    mirror.clear()
    assert not mirror.broken
