"""An engine that is starting with ``IRMINSUL_REUSE=share`` -> its tables and loans, or a refusal.

Knows what borrowing needs of an engine; must not know how it works.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from irminsul.attention import PAGE_SIZE
from irminsul.errors import Unsupported
from irminsul.integrations.sglang import settings
from irminsul.integrations.sglang.agreement import Agreement
from irminsul.integrations.sglang.attention import registration
from irminsul.integrations.sglang.compat import (
    attention_backend,
    attention_groups,
    server_value,
)
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.settings import Settings
from irminsul.integrations.sglang.share.tables import LoanTables
from irminsul.integrations.sglang.start.selfcheck import rope_table

MOST_BORROWERS = 256
"""Requests that may borrow at the same time; each costs the tiles of a longest prompt, 16 bytes a
page."""


def tables_for(runner: Any) -> LoanTables | None:
    """Return the tables of an attention backend that is being built; None where nobody borrows.

    Parameters
    ----------
    runner : ModelRunner
        SGLang's, with its model and pools in place.

    Notes
    -----
    Called before the cache is built, as CUDA graphs hold the tables' addresses. What cannot borrow
    gets none here and is refused by `check` later, with the reason.
    """
    arguments = runner.server_args
    ours = server_value(arguments, "radix_cache_backend") == registration.NAME
    if not ours or settings.load().reuse != "share" or runner.page_size != PAGE_SIZE:
        return None
    slots = runner.req_to_token_pool.req_to_token
    most = min(MOST_BORROWERS, slots.shape[0])
    return LoanTables(most, slots, rope_table(runner.model, slots.device))


def check(context: Any, options: Settings) -> None:
    """Raise `Unsupported` with every reason why requests of this engine must not borrow."""
    reasons = list(_reasons(context, options))
    if reasons:
        raise _refusal(reasons)


def connect(cache: Any, context: Any, options: Settings, metrics: Metrics) -> None:
    """Let requests of `cache` borrow; `check` has passed."""
    from irminsul.integrations.sglang.share.lending import Sharing
    from irminsul.integrations.sglang.share.pages import give_back

    # An allocator that cannot do this must stop the start, not the first batch that borrows.
    nothing = cache.req_to_token_pool.req_to_token.new_empty(0)
    try:
        give_back(cache.token_to_kv_pool_allocator, nothing)
    except AttributeError as error:
        raise _refusal([f"pages are freed in a way that was not looked at ({error})."]) from error
    tables = context.tp_worker.model_runner.attn_backend.loans
    ranks = Agreement.of(context).ranks
    cache.sharing = Sharing(cache, tables, metrics, options.test_move, ranks)


def _refusal(reasons: Iterable[str]) -> Unsupported:
    return Unsupported(
        f"IRMINSUL_REUSE=share cannot serve this engine: {' Also, '.join(reasons)} "
        "IRMINSUL_REUSE=copy moves rows instead."
    )


def _reasons(context: Any, options: Settings) -> Iterator[str]:
    arguments = context.server_args
    names = [attention_backend(arguments, phase) for phase in ("prefill", "decode")]
    if set(names) != {registration.NAME}:
        yield (
            f"prefill and decode attend by {names[0]} and {names[1]}, which read rows of other "
            "positions as they lie: use --attention-backend irminsul for both."
        )
    page = context.params.page_size
    if page != PAGE_SIZE:
        yield f"pages of {page} tokens are not lent: use --page-size {PAGE_SIZE}."
    if attention_groups(arguments) > 1:
        yield "with attention data parallelism it was never run: drop --enable-dp-attention."
    if server_value(arguments, "kv_events_config"):
        yield (
            "what a request computed behind borrowed pages would be announced as a prefix: drop "
            "--kv-events-config."
        )
    if options.host_bytes or options.pool_master:
        yield (
            "rows beyond the pool are copied from a request's own slots: unset "
            "IRMINSUL_HOST_BYTES and IRMINSUL_POOL_MASTER."
        )
    if not _releases_are_known():
        yield "this SGLang releases rows in a way that was not looked at: use 0.5.16 to 0.5.23."
    loans = getattr(context.tp_worker.model_runner.attn_backend, "loans", None)
    if set(names) == {registration.NAME} and page == PAGE_SIZE and loans is None:
        yield "the attention backend has no tables for borrowed pages."


def _releases_are_known() -> bool:
    """Return whether the tree is told of a row at its end and frees it in one call, or in two."""
    from sglang.srt.mem_cache.radix_cache import RadixCache

    told = any(hasattr(RadixCache, name) for name in ("checkpoint", "insert_req"))
    in_two = told and hasattr(RadixCache, "on_release")
    return in_two or hasattr(RadixCache, "cache_finished_req")
