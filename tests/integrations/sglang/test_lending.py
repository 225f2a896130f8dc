"""What fails while pages are lent -> nothing lost: a batch is trimmed only when nothing can."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from irminsul.attention import PAGE_SIZE
from irminsul.integrations.sglang.admission import finding
from irminsul.integrations.sglang.agreement import Agreement
from irminsul.integrations.sglang.batch import planner
from irminsul.integrations.sglang.hooks import Hooks
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.settings import Settings
from irminsul.integrations.sglang.share.lending import Sharing
from irminsul.integrations.sglang.share.loans import Lent
from irminsul.integrations.sglang.share.tables import LoanTables
from irminsul.integrations.sglang.spans import Limits, Span, Window
from irminsul.rotation import RopeTable

ROWS, ENTRIES, PAGES = 4, 2, 40
WIDTH = PAGES * PAGE_SIZE
LENDER_PAGES, OWN_PAGES = (100, 101, 102, 103, 104), range(200, 200 + PAGES)


class Allocator:
    """As the pool's of 0.5.16, with the means to refuse."""

    def __init__(self) -> None:
        self.free_pages = torch.tensor([7, 8])
        self.need_sort, self.is_not_in_free_group, self.refuses = False, True, False

    @property
    def free_pages(self) -> torch.Tensor:
        return self._free

    @free_pages.setter
    def free_pages(self, pages: torch.Tensor) -> None:
        if getattr(self, "refuses", False):
            raise RuntimeError("asked to refuse pages")
        self._free = pages


class Cache:
    """Locks of nodes, and the pools."""

    def __init__(self) -> None:
        self.locks: list[int] = []
        self.fails_after = 99
        self.token_to_kv_pool_allocator = Allocator()
        table = torch.arange(ROWS * WIDTH, dtype=torch.int32).view(ROWS, WIDTH)
        self.req_to_token_pool = SimpleNamespace(req_to_token=table)

    def inc_lock_ref(self, node: Any) -> None:
        if len(self.locks) == self.fails_after:
            raise RuntimeError("asked to fail to lock")
        self.locks.append(node.id)

    def dec_lock_ref(self, node: Any) -> None:
        self.locks.remove(node.id)


def lender(number: int) -> Any:
    pages = torch.tensor(LENDER_PAGES)
    value = (pages[:, None] * PAGE_SIZE + torch.arange(PAGE_SIZE)).flatten()
    return SimpleNamespace(id=number, number=number, value=value, parent=None)


def window(row: int = 1) -> Window:
    """One request whose pages 2 to 6 two lenders have, five pages each, one after the other."""
    request = SimpleNamespace(rid="r", req_pool_idx=row, origin_input_ids=[0] * WIDTH)
    spans = []
    for number, first in enumerate((2, 10)):
        start, length = first * PAGE_SIZE, 5 * PAGE_SIZE
        rows = ((lender(number), 0, length),)
        spans.append(Span(start, start + length, start, 0, 0, rows))
    return Window(request, 0, 20 * PAGE_SIZE, spans)


def placed(given: Window) -> planner.Placed:
    own = torch.tensor(list(OWN_PAGES))
    slots = (own[:, None] * PAGE_SIZE + torch.arange(PAGE_SIZE)).flatten()
    return [(span, slots[span.start : span.end]) for span in given.spans]


@pytest.fixture
def cache() -> Cache:
    return Cache()


@pytest.fixture
def sharing(cache: Cache) -> Sharing:
    angles = torch.cat([torch.ones(WIDTH, 32), torch.zeros(WIDTH, 32)], dim=1)
    slots = cache.req_to_token_pool.req_to_token
    return Sharing(
        cache, LoanTables(ENTRIES, slots, RopeTable(angles, interleaved=True)), Metrics(60.0)
    )


def divided(sharing: Sharing) -> Lent:
    given = window()
    moved, lent = sharing.divide([given], placed(given))
    assert moved == []
    assert lent is not None
    return lent


def untouched(sharing: Sharing, cache: Cache) -> bool:
    table = cache.req_to_token_pool.req_to_token
    return (
        cache.locks == []
        and sharing.tokens == 0
        and sorted(sharing._unused) == [1, 2]
        and cache.token_to_kv_pool_allocator.free_pages.tolist() == [7, 8]
        and torch.equal(table, torch.arange(ROWS * WIDTH, dtype=torch.int32).view(ROWS, WIDTH))
    )


def test_a_lock_that_fails_leaves_nothing_locked(sharing: Sharing, cache: Cache) -> None:
    lent, cache.fails_after = divided(sharing), 1
    with pytest.raises(RuntimeError, match="asked to fail to lock"):
        sharing.secure(lent)
    assert untouched(sharing, cache)


def test_an_entry_that_is_taken_leaves_nothing_locked(sharing: Sharing, cache: Cache) -> None:
    lent = divided(sharing)
    sharing._unused.remove(lent.parts[0].number)
    with pytest.raises(ValueError, match="not in list"):
        sharing.secure(lent)
    sharing._unused.append(lent.parts[0].number)
    assert untouched(sharing, cache)


def test_what_is_renounced_was_never_lent(sharing: Sharing, cache: Cache) -> None:
    lent = divided(sharing)
    sharing.secure(lent)
    assert cache.locks == [0, 1]
    sharing.renounce(lent)
    assert untouched(sharing, cache)


def test_pages_that_the_allocator_refuses_are_given_back_later(
    sharing: Sharing, cache: Cache
) -> None:
    allocator, lent = cache.token_to_kv_pool_allocator, divided(sharing)
    allocator.refuses = True
    sharing.secure(lent)
    sharing.lend(lent)
    # The request borrows, and its slots are still taken: no sum counts them as free.
    assert sharing.at(1) is not None
    assert sharing.tokens == 0
    assert sharing._metrics.fallbacks == {"lending": 1}
    allocator.refuses = False
    sharing.release(1)
    own = [page for first in (2, 10) for page in OWN_PAGES[first : first + 5]]
    assert sorted(allocator.free_pages.tolist()) == [7, 8, *own]
    assert sharing.tokens == 0
    assert cache.locks == []


def test_a_rank_whose_pages_are_refused_ends_rather_than_have_less_room_than_others(
    sharing: Sharing, cache: Cache
) -> None:
    ranks = Sharing(cache, sharing._tables, Metrics(60.0), ranks=2)
    lent = divided(ranks)
    ranks.secure(lent)
    cache.token_to_kv_pool_allocator.refuses = True
    with pytest.raises(RuntimeError, match="asked to refuse pages"):
        ranks.lend(lent)
    with pytest.raises(RuntimeError, match="asked to refuse pages"):
        ranks.release(1)


class Votes(Agreement):
    """A second rank that votes as it is told to."""

    def __init__(self, answer: bool) -> None:
        self.answer = answer

    @property
    def ranks(self) -> int:
        return 2

    def agree(self, digest: int) -> bool:
        return self.answer and digest != finding.NOTHING


def planned(
    sharing: Sharing, agreement: Agreement, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, Metrics]:
    """Plan one batch of one request with everything around the lending left out."""
    cache, given = sharing._cache, window()
    cache.sharing, metrics = sharing, Metrics(60.0)
    cache.touch = lambda nodes: None
    cache.mirror = SimpleNamespace(registry=SimpleNamespace(stats=dict), broken=False)
    limits = Limits(64, 10**6, 8, WIDTH)
    hooks = Hooks(cache, None, None, limits, Settings(), metrics, agreement)  # type: ignore[arg-type]
    own = torch.tensor(list(OWN_PAGES))[:20]
    batch = SimpleNamespace(
        reqs=[given.request],
        prefix_lens=[0],
        extend_lens=[given.end],
        out_cache_loc=(own[:, None] * PAGE_SIZE + torch.arange(PAGE_SIZE)).flatten(),
        prefill_input_ids_cpu=torch.arange(given.end),
        forward_mode=SimpleNamespace(is_extend=lambda: True),
    )
    given.request.retracted_stain, given.request.cached_tokens = False, 0
    given.request.cached_tokens_device = 0
    monkeypatch.setattr(hooks.admission, "take", lambda batch: [given])
    monkeypatch.setattr(hooks, "_eligible", lambda batch, windows: True)
    monkeypatch.setattr(metrics, "due", lambda *_: False)
    hooks.plan(batch)
    return batch, metrics


def test_a_batch_is_trimmed_when_its_pages_are_secured(
    sharing: Sharing, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, metrics = planned(sharing, Agreement.alone(), monkeypatch)
    assert batch.extend_lens == [10 * PAGE_SIZE]
    assert metrics.fallbacks == {}
    assert sharing.tokens == 10 * PAGE_SIZE


def test_a_batch_whose_lenders_cannot_be_locked_is_computed_in_full(
    sharing: Sharing, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.fails_after = 1
    batch, metrics = planned(sharing, Agreement.alone(), monkeypatch)
    assert batch.extend_lens == [20 * PAGE_SIZE]
    assert batch.irm_plan is None
    assert metrics.fallbacks == {"planner": 1}
    assert untouched(sharing, cache)


def test_ranks_that_disagree_lend_nothing(
    sharing: Sharing, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, metrics = planned(sharing, Votes(answer=False), monkeypatch)
    assert batch.irm_plan is None
    assert metrics.fallbacks == {"ranks_disagree": 1}
    assert untouched(sharing, cache)
