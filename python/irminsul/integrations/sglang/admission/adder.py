"""A request about to be admitted -> the spans it will reuse, locked, and its prefill budget.

Knows SGLang's `PrefillAdder` and the planner; must not know batch tensors or the forward pass.

SGLang charges every token of a prompt against the chunk budget of a prefill round, moved ones too,
so a long prompt that is mostly known would be spread over rounds. Here the adder is lent as many
tokens as the round will move and gives back what it did not use: a round computes at most the chunk
budget, however much it moves. Slots are charged in full, as always.

A round sized for moved rows must find them when it runs, so their nodes are locked from admission
until the plan has named their slots. A request that memory refuses because of those locks is tried
again without them, and then within the plain budget.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from irminsul.integrations.sglang import compat, testing
from irminsul.integrations.sglang.admission import budget, finding, relinking
from irminsul.integrations.sglang.admission.costs import Costs
from irminsul.integrations.sglang.admission.gathering import Gathering
from irminsul.integrations.sglang.agreement import Agreement
from irminsul.integrations.sglang.batch import faults, planner
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.settings import Settings
from irminsul.integrations.sglang.spans import Limits, Window
from irminsul.integrations.sglang.start import refuse
from irminsul.integrations.sglang.tiers.off import NoTiers

if TYPE_CHECKING:
    from irminsul.integrations.sglang.tree.cache import IrminsulRadixCache

Call = Callable[..., Any]

# Tokens to compute below which starting a prefill takes longer than computing it.
_CHEAP = 1024


class Admission:
    """Answers the adder's calls of one scheduler process.

    Parameters
    ----------
    cache
        The tree whose rows are reused.
    limits, settings, metrics
        What to keep to, and what to count.
    agreement
        Makes all ranks reuse the same spans, or none: what a request reuses decides where its
        round ends, and with it the shape of the batch.
    costs
        What parts of a prefill take; None moves every span, however little it saves.
    """

    def __init__(
        self,
        cache: IrminsulRadixCache,
        limits: Limits,
        settings: Settings,
        metrics: Metrics,
        agreement: Agreement,
        costs: Costs | None = None,
    ) -> None:
        self._cache = cache
        self._costs = costs
        self._limits = limits
        self._settings = settings
        self._metrics = metrics
        self._agreement = agreement
        self._windows: list[Window] = []
        self._locked: list[Any] = []
        self._barred = self._overdrawn = False
        self._gathering = Gathering(settings.gather if agreement.ranks == 1 else 0.0)
        self._gathers: Any = None
        self._cut: Any = None
        # How many requests decode while a batch is built; None until it is asked for.
        self._decoding: int | None = None
        self._tiers = getattr(cache, "tiers", NoTiers())

    def add_one(self, original: Call, adder: Any, request: Any, *args: Any, **kw: Any) -> Any:
        """Around ``PrefillAdder.add_one_req``."""
        if not adder.can_run_list:
            self.release()
        if self._must_wait(adder, request) or self._is_cut(adder):
            return _result("OTHER")
        window = self._window(adder, request)
        if window.unmet and adder.can_run_list:
            return _result("OTHER")  # an empty batch has room for more of its rows
        if self._waits_for_others(adder, window):
            return _result("CONTINUE")
        call = partial(original, adder, request, *args, **kw)
        # The delayer counts calls over all ranks, so with it nothing may be tried twice.
        if window.spans and adder.prefill_delayer_single_pass is None:
            locked = self._lock(window)
            result = self._lend(call, adder, window)
            if budget.holds(adder, request):
                self._keep(adder, window)
                return result
            self._unlock(locked)
            if result != _result("NO_TOKEN"):
                return result
        result = call()
        if budget.holds(adder, request):
            self._keep(adder, window)
        elif self._locked and result == _result("NO_TOKEN"):
            # Rows that this batch has locked are free again in the next: the pool is not full.
            return _result("OTHER")
        return result

    def add_chunked(self, original: Call, adder: Any, request: Any, *args: Any, **kw: Any) -> Any:
        """Around ``PrefillAdder.add_chunked_req``: the next round of a long prompt."""
        self.release()
        window = self._window(adder, request)
        call = partial(original, adder, request, *args, **kw)
        locked = self._lock(window)
        if window.spans and budget.has_room(adder, window):
            result = self._lend(call, adder, window)
        else:
            self._unlock(locked)
            locked, result = [], call()
        if budget.holds(adder, request):
            self._keep(adder, window)
            # A policy that leaves budget for shorter prompts cuts this one on purpose.
            shares = getattr(adder, "chunked_req_limit", None) is not None
            self._cut = adder if result is request and not shares else None
        else:
            # SGLang had no room for this round: the batch begins with somebody else.
            self._unlock(locked)
            self._cut = None
        return result

    def take(self, batch: Any) -> list[Window]:
        """Return what each request of `batch` prefills, with the spans that are still there."""
        admitted = {id(window.request): window for window in self._windows}
        found = []
        for plain in planner.windows_of(batch):
            window = admitted.get(id(plain.request), plain)
            if (window.start, window.end) != (plain.start, plain.end):
                window = plain
            if window.spans:
                finding.follow(window, self._cache.mirror, self._metrics)
            found.append(window)
        return found

    def lends(self) -> bool:
        """Return whether the batch that is being built counts on rows that are moved."""
        return self._overdrawn or any(window.spans for window in self._windows)

    def release(self) -> None:
        """Unlock every donor and forget the batch that was being built."""
        self._windows, self._barred, self._decoding = [], False, None
        self._overdrawn = False
        self._unlock(list(self._locked))

    def give_up(self) -> bool:
        """After a failure: let the batch be computed in full; False where other ranks would not."""
        if self._agreement.ranks > 1:
            return False
        self._metrics.fallback("planner", "admission failed; this batch is computed in full")
        self.release()
        # What was admitted before may be more than one forward holds: it is cut, with all of it.
        self._overdrawn = self._barred = True
        return True

    def _must_wait(self, adder: Any, request: Any) -> bool:
        """Return whether `request` would undo the plans of those already in the batch."""
        if not self.lends():
            return False
        return refuse.round_reason(request) is not None or self._left(adder).rows < 1

    def _is_cut(self, adder: Any) -> bool:
        """Return whether the round ends inside a request of the batch: it is the batch's last.

        SGLang has no budget left then. Here a page may be, because reuse ends rounds anywhere.
        """
        return adder.new_chunked_req is not None or self._cut is adder

    def _waits_for_others(self, adder: Any, window: Window) -> bool:
        """Return whether no batch is begun now, because more of its requests are about to come.

        The first request decides for all of the queue. The others are planned meanwhile.
        """
        if adder.can_run_list or adder.prefill_delayer_single_pass is not None:
            return False
        if self._gathers is adder:
            return True
        cheap = bool(window.spans) and window.end - window.start - window.reused <= _CHEAP
        idle = cheap and not self._decoders(adder)
        waits = idle and self._gathering.waits(adder.waiting_queue_len)
        self._gathers = adder if waits else None
        return waits

    def _decoders(self, adder: Any) -> int:
        """Return how many requests decode; counted once for each batch that is built."""
        if self._decoding is None:
            self._decoding = budget.decoding(adder)
        return self._decoding

    def _left(self, adder: Any) -> Limits:
        """Return the limits that the rest of the batch has to keep."""
        running = adder.running_batch
        rows = len(running.reqs) if running is not None else 0
        return self._limits.less(self._windows, rows)

    def _window(self, adder: Any, request: Any) -> Window:
        """Return all that `request` has left to prefill, with the spans it may reuse.

        Never raises: a failure is a miss.
        """
        total = len(compat.prompt_tokens(request))
        window = Window(request, compat.prefix_length(request), total)
        try:
            faults.heed(self._cache.mirror)
            if not self._barred:
                self._fill(window, self._left(adder))
        except Exception:
            window.give_up()
            self._metrics.fallback("planner", "planning failed; this request is computed in full")
        if finding.agreed([window], self._agreement):
            return window
        if self._tiers.enabled:
            # Chunks arrive when they arrive: with those that all ranks have they may agree.
            limits = self._left(adder)
            self._tiers.meet(window, limits)
            window.again, window.unmet = (), 0
            finding.cut_to_limits([window], limits, self._metrics)
        if not self._tiers.enabled or not finding.agreed([window], self._agreement):
            window.give_up()
            self._metrics.fallback("ranks_disagree", "ranks planned differently; computing")
        return window

    def _fill(self, window: Window, limits: Limits) -> None:
        namespace = self._cache.lookup_namespace(window.request)
        if namespace is None or window.end - window.start <= limits.min_span:
            return
        if refuse.round_reason(window.request) is not None:
            return
        if testing.selected(window.request, self._settings.test_planner_raises):
            raise RuntimeError("asked to fail by IRMINSUL_TEST_PLANNER_RAISES")
        finding.find_spans(window, self._cache.mirror, namespace, limits, self._metrics)
        self._tiers.fill(window, limits)
        testing.keep_holes(window, self._settings.test_holes)
        form = testing.form(window.request, self._settings)
        costs = self._costs if form is None else None
        if costs is not None:
            finding.keep_worthwhile(window, costs, self._metrics)
        finding.cut_to_limits([window], limits, self._metrics)
        policy = self._cache.mirror.registry.policy
        relinking.relink(window, self._settings, policy, limits, costs, self._metrics)

    def _lend(self, call: Call, adder: Any, window: Window) -> Any:
        """Run `call` with a budget that leaves room for what the round moves."""
        lent = budget.credit(adder, window)
        budget.change_budget(adder, lent)
        try:
            result = call()
        except BaseException:
            budget.change_budget(adder, -lent)
            raise
        if not budget.holds(adder, window.request):
            budget.change_budget(adder, -lent)
            return result
        window.cut(compat.extend_end(window.request))
        budget.change_budget(adder, window.reused - lent)
        compat.count_moved(adder, window.request, window.reused)
        return adder.budget_state() if isinstance(result, type(_result("OTHER"))) else result

    def _keep(self, adder: Any, window: Window) -> None:
        window.cut(compat.extend_end(window.request))
        self._windows.append(window)
        self._gathering.saw(len(adder.can_run_list) + self._decoders(adder))
        # Its results are cut by lengths that a plan changes, so the whole batch is computed.
        self._barred |= refuse.round_reason(window.request) is not None

    def _lock(self, window: Window) -> list[Any]:
        spans = [span for span in window.spans if not span.on_host]
        nodes = {id(node): node for span in spans for node, _, _ in span.rows}
        for node in nodes.values():
            self._cache.inc_lock_ref(node)
            self._locked.append(node)
        return list(nodes.values())

    def _unlock(self, nodes: list[Any]) -> None:
        for node in nodes:
            self._locked.remove(node)
            self._cache.dec_lock_ref(node)


def _result(name: str) -> Any:
    from sglang.srt.managers.schedule_policy import AddReqResult

    return AddReqResult[name]
