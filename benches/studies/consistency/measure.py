"""Trials and arms -> one sample for every question: is the answer right, how far are the scores?

Must not know statistics or files. The context of a trial is served once for each arm; its six
questions then stand on those rows, as six users of one cached context would.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import arms
import tasks
from irminsul import Policy
from irminsul.integrations.transformers import PICEngine, Span
from scenarios import Trial
from torch import Tensor

FULL = "full prefill"
NOISE = ("full prefill, chunks of 509", "full prefill, one at a time")


@dataclass(frozen=True)
class Sample:
    """One question under one arm.

    Attributes
    ----------
    correct, full_correct
        Whether the greedy answer is the expected one; the same under full prefill.
    kl
        KL(full prefill || arm) in nats, mean over question and answer tokens.
    diverged
        First answer token that differs from full prefill's greedy answer, or None.
    computed
        Share of the context's tokens that were computed.
    """

    kind: str
    arm: str
    correct: bool
    full_correct: bool
    kl: float
    diverged: int | None
    computed: float


@dataclass
class _Case:
    """A question, its place, and what full prefill makes of it."""

    trial: int
    question: tasks.Question
    answer: list[int] = field(default_factory=list)
    scores: Tensor | None = None


class Bench:
    """Runs trials under arms.

    Parameters
    ----------
    model
        See `PICEngine`.
    capacity_tokens
        Room for all trials of a call: 24 contexts each, with their questions; 48 in chains.
    """

    def __init__(self, model: object, capacity_tokens: int, chunk_tokens: int = 8192) -> None:
        policy = Policy(sink_tokens=0)
        self.engine = PICEngine(
            model, capacity_tokens=capacity_tokens, chunk_tokens=chunk_tokens, policy=policy
        )
        self.narrow = PICEngine(model, capacity_tokens=capacity_tokens // 3, chunk_tokens=509)

    def run(self, trials: Sequence[Trial], chosen: Sequence[arms.Arm]) -> Iterator[Sample]:
        """Yield a sample for each trial, question and arm, full prefill and its noise included."""
        cases = [_Case(i, question) for i, t in enumerate(trials) for question in t.questions]
        self.engine.clear()
        self.narrow.clear()
        contexts = [trial.context for trial in trials]
        cold = self._serve(self.engine, contexts, "cold", None)
        self._full(trials, cases)
        yield from self._judge(self.engine, trials, cases, "cold", FULL, [1.0] * len(trials))
        yield from self._noise(trials, cases)
        chain = len(trials[0].history) > 1
        if not chain:
            self._serve(self.engine, [trial.history[0] for trial in trials], "donor", None)
        for arm in chosen:
            share = self._chain(trials, arm) if chain else self._once(trials, arm, cold)
            yield from self._judge(self.engine, trials, cases, arm.name, arm.name, share)

    def _full(self, trials: Sequence[Trial], cases: Sequence[_Case]) -> None:
        """Greedy answers of full prefill, and the scores of every token of question and answer."""
        prompts = [[*trials[c.trial].context, *c.question.prompt] for c in cases]
        tenants = [f"{case.trial} cold" for case in cases]
        answers = self.engine.generate(
            prompts, max_new_tokens=10, stop=[tasks.DOT], record=False, tenant=tenants
        )
        for case, answer in zip(cases, answers, strict=True):
            case.answer = answer.tokens
        for case, scores in zip(
            cases, self._forced(self.engine, trials, cases, "cold"), strict=True
        ):
            case.scores = scores

    def _noise(self, trials: Sequence[Trial], cases: Sequence[_Case]) -> Iterator[Sample]:
        """Full prefill once more, cut differently, and prompt by prompt."""
        contexts = [trial.context for trial in trials]
        share = [1.0] * len(trials)
        self._serve(self.narrow, contexts, "narrow", None)
        yield from self._judge(self.narrow, trials, cases, "narrow", NOISE[0], share)
        for index, context in enumerate(contexts):
            self.engine.generate(
                [context], reuse=False, max_new_tokens=0, tenant=[f"{index} alone"]
            )
        yield from self._judge(self.engine, trials, cases, "alone", NOISE[1], share)

    def _serve(
        self,
        engine: PICEngine,
        prompts: Sequence[Sequence[int]],
        name: str,
        spans: Sequence[Sequence[Span]] | None,
    ) -> list[int]:
        """Compute prompts, taking spans over where given; return the kept sequences' numbers."""
        known = None
        if spans is not None:
            known = {tuple(p): s for p, s in zip(prompts, spans, strict=True)}
        engine.generate(
            prompts,
            reuse=False if known is None else lambda tokens: known[tuple(tokens)],
            max_new_tokens=0,
            tenant=[f"{index} {name}" for index in range(len(prompts))],
        )
        return engine.kept()[-len(prompts) :]

    def _once(self, trials: Sequence[Trial], arm: arms.Arm, cold: Sequence[int]) -> list[float]:
        """Serve the contexts from one earlier request each."""
        prompts = [trial.context for trial in trials]
        return self._step(prompts, arm, "donor", arm.name, cold)

    def _chain(self, trials: Sequence[Trial], arm: arms.Arm) -> list[float]:
        """Serve a session's requests, each from all earlier ones, under the arm throughout."""
        share: list[float] = []
        for turn in range(len(trials[0].history) + 1):
            prompts = [(*trial.history, trial.context)[turn] for trial in trials]
            cold = self._serve(self.engine, prompts, "scratch", None) if arm.select else []
            share = self._step(prompts, arm, arm.name, arm.name, cold)
        return share

    def _step(
        self,
        prompts: Sequence[Sequence[int]],
        arm: arms.Arm,
        source: str,
        name: str,
        cold: Sequence[int],
    ) -> list[float]:
        """Plan from tenant `source`, serve under tenant `name`; return the computed shares."""
        spans = []
        for index, prompt in enumerate(prompts):
            found = self.engine.plan(prompt, tenant=f"{index} {source}")
            spans.append(arm.spans(found, len(prompt)))
        if arm.select:
            moved = self._serve(self.engine, prompts, "unselected", spans)
            for index, (left, right) in enumerate(zip(cold, moved, strict=True)):
                far = self._deviation(left, right)
                ranges = arms.most_deviating(spans[index], far, arm.select)
                exact = arms.prefix(spans[index])
                behind = spans[index][len(exact) :]
                spans[index] = [*exact, *arms.without(behind, ranges)]
        self._serve(self.engine, prompts, name, spans)
        reused = [sum(span.length for span in part) for part in spans]
        return [1 - n / len(p) for n, p in zip(reused, prompts, strict=True)]

    def _deviation(self, cold: int, moved: int) -> Tensor:
        """Relative distance of each row in layer 1, the first that knows context."""
        exact = self.engine.read_rows(cold, 1).float()
        return (self.engine.read_rows(moved, 1).float() - exact).norm(dim=1) / exact.norm(dim=1)

    def _forced(
        self, engine: PICEngine, trials: Sequence[Trial], cases: Sequence[_Case], name: str
    ) -> list[Tensor]:
        """Scores of every token of question and full prefill's answer, over an arm's rows."""
        prompts = [[*trials[c.trial].context, *c.question.prompt, *c.answer[:-1]] for c in cases]
        answers = engine.generate(
            prompts,
            max_new_tokens=0,
            logits="computed",
            logits_from=[len(trials[case.trial].context) for case in cases],
            record=False,
            tenant=[f"{case.trial} {name}" for case in cases],
        )
        for answer, case in zip(answers, cases, strict=True):
            if answer.stats.prefix != len(trials[case.trial].context):
                raise RuntimeError(f"a context was forgotten under {name!r}: give more capacity")
        return [answer.logits for answer in answers if answer.logits is not None]

    def _judge(
        self,
        engine: PICEngine,
        trials: Sequence[Trial],
        cases: Sequence[_Case],
        tenant: str,
        arm: str,
        share: Sequence[float],
    ) -> Iterator[Sample]:
        scores = self._forced(engine, trials, cases, tenant)
        for case, theirs in zip(cases, scores, strict=True):
            assert case.scores is not None
            picked = theirs[len(case.question.prompt) - 1 :].argmax(-1).tolist()
            differs = [i for i, t in enumerate(case.answer) if picked[i] != t]
            full_correct = case.answer == list(case.question.answer)
            correct = full_correct and not differs
            if differs and not full_correct:
                correct = self._answer(engine, trials, case, tenant) == case.question.answer
            yield Sample(
                kind=case.question.kind,
                arm=arm,
                correct=correct,
                full_correct=full_correct,
                kl=divergence(case.scores, theirs),
                diverged=differs[0] if differs else None,
                computed=share[case.trial],
            )

    def _answer(
        self, engine: PICEngine, trials: Sequence[Trial], case: _Case, tenant: str
    ) -> tuple[int, ...]:
        """The arm's own greedy answer, where it may differ from full prefill's."""
        prompt = [*trials[case.trial].context, *case.question.prompt]
        (answer,) = engine.generate(
            [prompt],
            max_new_tokens=10,
            stop=[tasks.DOT],
            record=False,
            tenant=f"{case.trial} {tenant}",
        )
        return tuple(answer.tokens)


def divergence(exact: Tensor, other: Tensor) -> float:
    """Mean KL(exact || other) in nats over rows of scores [n, vocabulary]."""
    p, q = exact.double().log_softmax(-1), other.double().log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean().clamp(min=0))
