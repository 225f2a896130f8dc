"""SGLang's hooked calls on a batch -> the batch trimmed, moved, expanded to rows, and put back.

Knows SGLang's forward batch and the plan; must not know the registry or the radix tree's inside.

The scheduler, the sampler and the result see one row per request. Only the model in between sees
one row per hole: rows of one request share its ``req_to_token`` row, and each row attends to all
positions before it, moved ones included, because every backend writes a batch's KV first.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from irminsul.errors import IrminsulError
from irminsul.integrations.sglang import streams, testing
from irminsul.integrations.sglang.admission import finding
from irminsul.integrations.sglang.admission.adder import Admission
from irminsul.integrations.sglang.admission.costs import Costs
from irminsul.integrations.sglang.agreement import Agreement
from irminsul.integrations.sglang.batch import expansion, faults, heads, planner
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.plan_guard import PlanGuard
from irminsul.integrations.sglang.settings import Settings
from irminsul.integrations.sglang.spans import BatchPlan, Limits, Span, Window
from irminsul.integrations.sglang.start import refuse
from irminsul.integrations.sglang.tiers.off import NoTiers
from irminsul.rotation import RopeTable, relocate_rows

if TYPE_CHECKING:
    from irminsul.integrations.sglang.share.lending import Sharing
    from irminsul.integrations.sglang.tree.cache import IrminsulRadixCache


class Hooks:
    """Answers the hooked calls of one scheduler process.

    Parameters
    ----------
    cache
        The tree whose rows are reused.
    pool
        SGLang's MLA KV pool.
    table
        The model's rotation, on the pool's device.
    limits, settings, metrics
        What to keep to, and what to count.
    agreement
        Makes all ranks run the same plan, or none.
    costs
        Decides between the forms of attention; None absorbs.
    """

    def __init__(
        self,
        cache: IrminsulRadixCache,
        pool: Any,
        table: RopeTable,
        limits: Limits,
        settings: Settings,
        metrics: Metrics,
        agreement: Agreement,
        costs: Costs | None = None,
    ) -> None:
        self.cache = cache
        self.admission = Admission(cache, limits, settings, metrics, agreement, costs)
        self._costs = costs
        self.active: Any = None
        self.absorbs = True
        self.plan_guard = PlanGuard(metrics) if settings.plan_guard else None
        self._pool = pool
        self._table = table
        self._limits = limits
        self._settings = settings
        self._metrics = metrics
        self._agreement = agreement
        self._tiers = getattr(cache, "tiers", NoTiers())
        self._sharing: Sharing | None = getattr(cache, "sharing", None)

    def plan(self, batch: Any) -> None:
        """After ``ScheduleBatch.prepare_for_extend``: trim `batch` to its holes.

        A failure is a miss: the batch is computed as SGLang built it. Raises only where other ranks
        would run another batch than this one, and wait for it for ever.
        """
        with self._metrics.timed("plan_seconds"):
            used = self._plan(batch)
        try:
            self.cache.touch(node for span in used for node, _, _ in span.rows)
            if self._metrics.due("registry"):
                mirror = self.cache.mirror
                self._metrics.sample(mirror.registry.stats(), active=not mirror.broken)
        except Exception:
            self._metrics.fallback("metrics", "counting failed; serving goes on")

    def _plan(self, batch: Any) -> list[Span]:
        """Trim `batch`, or leave it as it is, and return the spans whose rows are moved."""
        batch.irm_plan = batch.irm_heads = None
        windows: list[Window] = []
        trimmed, lent = None, self.admission.lends()
        try:
            windows = self.admission.take(batch)
            trimmed = self._prepare(batch, windows)
        except Exception:
            self._metrics.fallback("planner", "planning failed; this batch is computed in full")
        try:
            self.admission.release()
        except Exception:
            self._metrics.fallback("planner", "donors stay locked until the next batch is planned")
        if not finding.agreed(windows if trimmed else [], self._agreement):
            self._metrics.fallback("ranks_disagree", "ranks planned differently; computing")
            if trimmed is not None and self._sharing is not None:
                self._sharing.renounce(trimmed.plan.lent)
        elif trimmed is not None:
            planner.trim(batch, windows, trimmed, self._metrics)
            if self._sharing is not None:
                self._sharing.lend(trimmed.plan.lent)
            testing.dump_plan(self._settings.test_dump_rows, self._pool, windows, trimmed.plan)
            return [span for w in windows for span in w.spans if not span.on_host]
        if lent:
            self._split(batch)
        return []

    def _split(self, batch: Any) -> None:
        """Keep a batch within memory that was to move rows and has to compute them after all."""
        try:
            batch.irm_heads = heads.split(batch, self._limits.forward_tokens or None)
        except Exception:
            # Other ranks run in parts now and would wait for this one in their first forward.
            if self._agreement.ranks > 1:
                raise
            self._metrics.fallback("planner", "a long batch could not be cut; it runs in one")
        self._metrics.add("split_batches", bool(batch.irm_heads))

    def adopt(self, forward_batch: Any, batch: Any, runner: Any) -> None:
        """After ``ForwardBatch.init_new``: give the trimmed tokens their true positions."""
        plan: BatchPlan | None = getattr(batch, "irm_plan", None)
        forward_batch.irm_plan = None
        if self._sharing is not None and forward_batch.forward_mode.is_extend():
            forward_batch.irm_borrows = self._sharing.among(batch.reqs)
        if plan is None or plan.adopted or runner.is_draft_worker:
            return
        if not forward_batch.forward_mode.is_extend():
            return
        plan.adopted = True
        streams.use_on_this_stream(plan.tensors())
        # Tokens of decoding requests that a mixed batch appended keep SGLang's positions.
        positions = forward_batch.positions.clone()
        positions[: len(plan.positions)] = plan.positions
        forward_batch.positions = positions
        forward_batch.extend_logprob_start_lens_cpu = expansion.logprob_starts(forward_batch, plan)
        forward_batch.irm_plan = plan

    def adopt_heads(self, forward_batch: Any, batch: Any, make: Callable[[Any], Any]) -> None:
        """After ``ForwardBatch.init_new``: make those of the heads that run before it."""
        forward_batch.irm_heads = heads.adopt(forward_batch, batch, make)

    def forward(
        self, original: Callable[..., Any], runner: Any, forward_batch: Any, *args: Any, **kw: Any
    ) -> Any:
        """Around ``ModelRunner.forward``: move the rows, then run one row per hole.

        Raises whatever moving raises: the batch is trimmed, so it cannot be run without.
        """
        if self._sharing is not None:
            self._sharing.flush(getattr(forward_batch, "irm_borrows", True))
        plan: BatchPlan | None = getattr(forward_batch, "irm_plan", None)
        if plan is None or runner.is_draft_worker:
            for head in getattr(forward_batch, "irm_heads", ()):
                original(runner, head)
            with self._tiers.timing(forward_batch):
                return original(runner, forward_batch, *args, **kw)
        with self._metrics.timed("relocate_seconds"):
            self._move(plan)
            self._tiers.copy(plan)
        self._metrics.add("relocated_tokens", len(plan.source_slots))
        view = expansion.expand(forward_batch, plan)
        self.absorbs = self._cheaper_absorbed(view, plan)
        self.active = forward_batch
        try:
            return original(runner, view, *args, **kw)
        finally:
            self.active = None

    def _move(self, plan: BatchPlan) -> None:
        rows = self._pool.kv_buffer, plan.source_slots, plan.target_slots, plan.deltas
        try:
            relocate_rows(*rows, self._table)
        except IrminsulError as error:
            # The GPU tells late: this may be about an earlier batch, and is told once.
            faults.lose_rows(self.cache.mirror, error)
            relocate_rows(*rows, self._table)

    def per_request(self, forward_batch: Any) -> Any:
        """Around ``LogitsMetadata.from_forward_batch``: one row per request again."""
        active = self.active
        if active is None:
            return forward_batch
        view = copy.copy(forward_batch)
        view.extend_seq_lens = active.extend_seq_lens
        view.extend_seq_lens_cpu = active.extend_seq_lens_cpu
        view.extend_logprob_start_lens_cpu = active.extend_logprob_start_lens_cpu
        if view.next_token_logits_buffer is not None:
            view.next_token_logits_buffer = view.next_token_logits_buffer[: active.batch_size]
        return view

    def _cheaper_absorbed(self, view: Any, plan: BatchPlan) -> bool:
        """Return whether the absorbed form is the cheaper one for the rows of `view`."""
        asked = testing.form_of_batch(plan, self._settings)
        if asked is not None or self._costs is None:
            return asked != "mha"
        starts, lengths = view.extend_prefix_lens_cpu, view.extend_seq_lens_cpu
        return self._costs.absorbs([(a, a + n) for a, n in zip(starts, lengths, strict=True)])

    def _eligible(self, batch: Any, windows: list[Window]) -> bool:
        if not batch.forward_mode.is_extend() or not windows:
            return False
        reason = refuse.batch_reason(batch)
        if reason is not None:
            self._metrics.fallback(f"batch_{reason}")
        return reason is None

    def _prepare(self, batch: Any, windows: list[Window]) -> planner.Trimmed | None:
        for window in windows:
            planner.forget_produced_again(window)
        if not self._eligible(batch, windows):
            return None
        testing.fail_late(windows, self._settings.test_planner_raises)
        finding.cut_to_limits(windows, self._limits, self._metrics)
        if not any(window.spans for window in windows):
            return None
        if self._sharing is None:
            return planner.prepare(batch, windows)
        trimmed = planner.prepare(batch, windows, self._sharing.divide)
        self._sharing.secure(trimmed.plan.lent)
        return trimmed
