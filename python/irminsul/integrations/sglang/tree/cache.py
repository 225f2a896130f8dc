"""SGLang's radix tree -> the same tree, recorded in the registry and safe for exact requests.

Knows the tree's insert, split and delete; must not know batches or attention.

Rows that were moved are approximate above layer 0, and so is all that was computed after them.
Stock code writes the tree's rows into a request's row when the tree already holds its path. So
exact requests live in a subtree of their own, under a marked ``extra_key``: they match, insert and
decode there and never see a moved row. Their rows are donors like any other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

from irminsul import Namespace, Registry
from irminsul.integrations.sglang import testing
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.settings import Settings
from irminsul.integrations.sglang.start import refuse
from irminsul.integrations.sglang.tiers.off import NoTiers
from irminsul.integrations.sglang.tree import options, tenancy
from irminsul.integrations.sglang.tree.mirror import TreeMirror
from irminsul.integrations.sglang.tree.nodes import touch

# Ends the extra_key of exact requests. A client whose own key ends so is served exactly as well,
# and in another subtree, so no row that was moved is ever found under such a key.
EXACT_SUFFIX = "\0irminsul-exact"


class IrminsulRadixCache(RadixCache):  # type: ignore[misc]
    """A `RadixCache` whose nodes are donors.

    Parameters
    ----------
    params
        SGLang's ``CacheInitParams``.
    registry
        Empty registry that this tree alone fills.
    identity
        `Namespace` fields of the whole engine: model, kv_layout, rope.
    settings, metrics
        What to do by default, and what to count.
    """

    def __init__(
        self,
        params: Any,
        registry: Registry,
        identity: dict[str, str],
        settings: Settings,
        metrics: Metrics,
    ) -> None:
        self.mirror = TreeMirror(registry, metrics)
        self.tiers = NoTiers()
        self._identity = identity
        self._settings = settings
        self._metrics = metrics
        self._inserting: Any = None
        super().__init__(params)

    # What SGLang calls.

    def reset(self) -> None:
        """Empty the tree and the registry (flush, weight update, sleep)."""
        super().reset()
        self.mirror.clear()
        self.tiers.reset()

    def match_prefix(self, params: Any) -> Any:
        """Match in the subtree that the request belongs to."""
        request = params.req
        if request is not None:
            if testing.selected(request, self._settings.test_no_tree_match):
                return self._empty_match_result
            if is_exact(request, self._settings, self._metrics):
                params = dataclasses.replace(params, key=_exact_key(params.key))
        return super().match_prefix(params)

    def insert(self, params: Any) -> Any:
        """Insert, then record what is new on the path of the request being served."""
        result = super().insert(params)
        request = self._inserting
        if request is not None:
            moved = getattr(request, "irm_moved", [])
            namespace = self._record_namespace(request)
            self.mirror.guard(
                self.mirror.record,
                result.last_device_node,
                self.root_node,
                namespace,
                moved,
            )
            if namespace is not None:
                leaf, trusted = result.last_device_node, not self.mirror.broken
                self.tiers.wrote(request, leaf, self.root_node, trusted)
        return result

    def checkpoint(self, req: Any, *, up_to: int) -> None:
        """Publish the first `up_to` rows of `req` (0.5.22 and later)."""
        with self._serving(req):
            self._dump(req, up_to)
            super().checkpoint(req, up_to=up_to)

    def insert_req(self, req: Any, *, up_to: int) -> None:
        """Publish the first `up_to` rows of a request that ends (0.5.21)."""
        with self._serving(req):
            self._dump(req, up_to)
            super().insert_req(req, up_to=up_to)

    def cache_unfinished_req(self, req: Any, *args: Any, **kwargs: Any) -> None:
        """Publish the rows of a request that goes on (before 0.5.22)."""
        with self._serving(req):
            self._dump(req, len(req.get_fill_ids()))
            super().cache_unfinished_req(req, *args, **kwargs)

    def cache_finished_req(
        self, req: Any, is_insert: bool = True, *, kv_len_to_handle: int
    ) -> None:
        """Publish the rows of a finished request (before 0.5.21)."""
        with self._serving(req):
            self._dump(req, kv_len_to_handle)
            super().cache_finished_req(req, is_insert, kv_len_to_handle=kv_len_to_handle)

    def _split_node(self, key: Any, child: Any, split_len: int) -> Any:
        head = super()._split_node(key, child, split_len)
        self.mirror.guard(self.mirror.split, child, head, head.parent)
        return head

    def _delete_leaf(self, node: Any) -> None:
        super()._delete_leaf(node)
        self.mirror.guard(self.mirror.delete, node)

    # What the planner asks.

    def lookup_namespace(self, request: Any) -> Namespace | None:
        """Return where to look for rows for `request`, or None when it must be exact."""
        if self.mirror.broken or is_exact(request, self._settings, self._metrics):
            return None
        return self._namespace(request)

    def touch(self, nodes: Iterable[Any]) -> None:
        """Mark donors as used now, so that eviction keeps the hot ones."""
        touch(nodes)

    def _record_namespace(self, request: Any) -> Namespace | None:
        # Ids that stand for images or for given embeddings do not say what their rows contain.
        if request.multimodal_inputs is not None or request.input_embeds is not None:
            return None
        if request.positional_embed_overrides is not None:
            return None
        return self._namespace(request)

    def _namespace(self, request: Any) -> Namespace:
        known: Namespace | None = getattr(request, "irm_namespace", None)
        if known is None:
            fields = (request.extra_key, getattr(request, "cache_salt", None))
            request.irm_fields = {
                "lora": request.lora_id or "",
                "tenant": tenancy.tenant(*fields),
            }
            known = Namespace(**self._identity, **request.irm_fields)
            request.irm_namespace = known
        return known

    def namespace_fields(self, request: Any) -> dict[str, Any]:
        """Return the `Namespace` fields that depend on the request: ``lora`` and ``tenant``."""
        self._namespace(request)
        fields: dict[str, Any] = request.irm_fields
        return fields

    def _dump(self, request: Any, length: int) -> None:
        folder = self._settings.test_dump_rows
        testing.dump(self, folder, request, length, self._metrics.snapshot() if folder else {})

    @contextmanager
    def _serving(self, request: Any) -> Iterator[None]:
        """Give super's code the request's subtree, and `insert` the request."""
        self._inserting = request
        # The namespace is the client's key, not the subtree's: settle it before the swap.
        self._namespace(request)
        own_key = request.extra_key
        if is_exact(request, self._settings, self._metrics):
            request.extra_key = (own_key or "") + EXACT_SUFFIX
        try:
            yield
        finally:
            request.extra_key = own_key
            self._inserting = None


def is_exact(request: Any, settings: Settings, metrics: Metrics) -> bool:
    """Return whether `request` must not see moved rows. Decided once, at its first match.

    Notes
    -----
    A request chooses by its option, see `irminsul.integrations.sglang.tree.options`.
    """
    known: bool | None = getattr(request, "irm_exact", None)
    if known is None:
        reason = refuse.request_reason(request) or options.exact_reason(request, settings)
        if reason is None and (request.extra_key or "").endswith(EXACT_SUFFIX):
            reason = "reserved_key"
        if reason == "bad_option":
            what = options.given(request)
            metrics.fallback(reason, "custom_params option %.80r is not understood", what)
        elif reason is not None:
            metrics.fallback(reason)
        known = reason is not None
        request.irm_exact = known
    return known


def _exact_key(key: Any) -> Any:
    """Return `key` in the subtree of exact requests."""
    marked = RadixKey(key.token_ids, (key.extra_key or "") + EXACT_SUFFIX, key.is_bigram, key.limit)
    if hasattr(key, "cache_salt"):
        marked.cache_salt = key.cache_salt
    return marked
