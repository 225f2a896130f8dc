"""Trials and arms -> one sample for every question: is the answer right, how far are the scores?

Must not know statistics or files. The context of a trial is served once for each arm; its six
questions then stand on those rows, as six users of one cached context would.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import arms
import tasks
import torch
from irminsul import Policy
from irminsul.integrations.transformers import PICEngine, RowPiece, Span
from scenarios import Trial
from torch import Tensor

FULL = "full prefill"
NOISE = ("full prefill, chunks of 509", "full prefill, one at a time")
LONGEST_ANSWER = 10


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
    """A question, its trial, and what full prefill makes of it."""

    trial: int
    question: tasks.Question
    answer: tuple[int, ...] = ()

    @property
    def forced(self) -> list[int]:
        """Question and full prefill's answer, whose last token needs no scores behind it."""
        return [*self.question.prompt, *self.answer[:-1]]

    @property
    def full_correct(self) -> bool:
        return self.answer == self.question.answer

    @property
    def ended(self) -> bool:
        return self.answer[-1:] == (tasks.DOT,)


@dataclass
class _Served:
    """Contexts as one arm computed them.

    Attributes
    ----------
    kept
        Numbers of the kept sequences, one for each trial.
    computed
        Share of each context's tokens that was computed.
    """

    engine: PICEngine
    kept: list[int]
    computed: list[float]


class Bench:
    """Runs trials under arms.

    Parameters
    ----------
    model
        See `PICEngine`.
    capacity_tokens
        Room for all trials of a call: 6 contexts each, 24 in chains.
    """

    def __init__(self, model: object, capacity_tokens: int, chunk_tokens: int = 8192) -> None:
        policy = Policy(sink_tokens=0)
        self.engine = PICEngine(
            model, capacity_tokens=capacity_tokens, chunk_tokens=chunk_tokens, policy=policy
        )
        self.narrow = PICEngine(model, capacity_tokens=capacity_tokens // 5, chunk_tokens=509)

    def run(self, trials: Sequence[Trial], chosen: Sequence[arms.Arm]) -> Iterator[Sample]:
        """Yield a sample for each trial, question and arm, full prefill and its noise included."""
        cases = [_Case(i, question) for i, t in enumerate(trials) for question in t.questions]
        self.engine.clear()
        self.narrow.clear()
        contexts = [trial.context for trial in trials]
        chain = len(trials[0].history) > 1
        turns = [[trial.history[0] for trial in trials]]
        if chain:
            turns = [[trial.history[i] for trial in trials] for i in range(len(trials[0].history))]
        cold = [self._serve(self.engine, contexts, "cold")]
        exact = self._full(cases, cold[0])
        yield from self._judge(cases, exact, cold[0], FULL)
        yield from self._noise(contexts, cases, exact)
        donors = [self._serve(self.engine, prompts, "donor") for prompts in turns]
        needed = {number for served in (*cold, *donors) for number in served.kept}
        for arm in chosen:
            self.engine.forget([number for number in self.engine.kept() if number not in needed])
            if chain:
                served = self._chain([*turns, contexts], arm, [*donors, *cold])
            else:
                served = self._step(contexts, arm, "donor", arm.name, cold[0])
            yield from self._judge(cases, exact, served, arm.name)

    def _full(self, cases: Sequence[_Case], cold: _Served) -> Tensor:
        """Set full prefill's greedy answers; return its scores of questions and answers.

        Where the expected answer is the most likely one token by token, it is the greedy one.
        """
        wanted = [[*case.question.prompt, *case.question.answer[:-1]] for case in cases]
        scores = cold.engine.score([cold.kept[case.trial] for case in cases], wanted)
        for case, found in zip(cases, _answers(cases, scores), strict=True):
            case.answer = found
        self._greedy([case for case in cases if not case.full_correct], cold)
        return torch.cat(self._forced(cases, cold))

    def _greedy(self, cases: Sequence[_Case], served: _Served) -> None:
        """Set answers token by token."""
        for case in cases:
            case.answer = ()
        while active := [c for c in cases if len(c.answer) < LONGEST_ANSWER and not c.ended]:
            tokens = [[*case.question.prompt, *case.answer] for case in active]
            scores = served.engine.score([served.kept[case.trial] for case in active], tokens)
            for case, found in zip(active, _picked(scores), strict=True):
                case.answer = (*case.answer, found[-1])

    def _noise(
        self, contexts: Sequence[Sequence[int]], cases: Sequence[_Case], exact: Tensor
    ) -> Iterator[Sample]:
        """Full prefill once more, cut differently, and prompt by prompt."""
        narrow = self._serve(self.narrow, contexts, "narrow")
        yield from self._judge(cases, exact, narrow, NOISE[0])
        kept = [
            self._serve(self.engine, [context], f"alone {index}").kept[0]
            for index, context in enumerate(contexts)
        ]
        alone = _Served(self.engine, kept, [1.0] * len(kept))
        yield from self._judge(cases, exact, alone, NOISE[1])

    def _serve(
        self,
        engine: PICEngine,
        prompts: Sequence[Sequence[int]],
        name: str,
        spans: Sequence[Sequence[Span]] | None = None,
    ) -> _Served:
        """Compute prompts, taking spans over where given, and keep them."""
        known = None
        if spans is not None:
            known = {tuple(p): s for p, s in zip(prompts, spans, strict=True)}
        engine.generate(
            prompts,
            reuse=False if known is None else lambda tokens: known[tuple(tokens)],
            max_new_tokens=0,
            tenant=[f"{index} {name}" for index in range(len(prompts))],
        )
        reused = [sum(span.length for span in part) for part in spans or [[]] * len(prompts)]
        share = [1 - n / len(p) for n, p in zip(reused, prompts, strict=True)]
        return _Served(engine, engine.kept()[-len(prompts) :], share)

    def _chain(
        self,
        turns: Sequence[Sequence[Sequence[int]]],
        arm: arms.Arm,
        cold: Sequence[_Served],
    ) -> _Served:
        """Serve a session's requests, each from all earlier ones, under the arm throughout.

        The first request computes everything: all rows but the last come from the cold one.
        """
        copies = [
            [Span(0, (RowPiece(number, 0, len(prompt) - 1),), 0)]
            for number, prompt in zip(cold[0].kept, turns[0], strict=True)
        ]
        served = self._serve(self.engine, turns[0], arm.name, copies)
        for prompts, exact in zip(turns[1:], cold[1:], strict=True):
            served = self._step(prompts, arm, arm.name, arm.name, exact)
        return served

    def _step(
        self,
        prompts: Sequence[Sequence[int]],
        arm: arms.Arm,
        source: str,
        name: str,
        cold: _Served,
    ) -> _Served:
        """Plan from tenant `source`, serve under tenant `name`."""
        spans = []
        for index, prompt in enumerate(prompts):
            found = self.engine.plan(prompt, tenant=f"{index} {source}")
            spans.append(arm.spans(found, prompt))
        if arm.select:
            moved = self._serve(self.engine, prompts, "unselected", spans)
            for index, (left, right) in enumerate(zip(cold.kept, moved.kept, strict=True)):
                far = self._deviation(left, right, arm.layer)
                ranges = arms.most_deviating(spans[index], far, arm.select)
                exact = arms.prefix(spans[index])
                behind = spans[index][len(exact) :]
                spans[index] = [*exact, *arms.without(behind, ranges)]
            self.engine.forget(moved.kept)
        return self._serve(self.engine, prompts, name, spans)

    def _deviation(self, cold: int, moved: int, layer: int) -> Tensor:
        """Relative distance of each row in a layer; layer 1 is the first that knows context."""
        exact = self.engine.read_rows(cold, layer).float()
        rows = self.engine.read_rows(moved, layer).float()
        return (rows - exact).norm(dim=1) / exact.norm(dim=1)

    def _forced(self, cases: Sequence[_Case], served: _Served) -> list[Tensor]:
        """Scores of every token of question and full prefill's answer, over an arm's rows."""
        return served.engine.score(
            [served.kept[case.trial] for case in cases], [case.forced for case in cases]
        )

    def _judge(
        self, cases: Sequence[_Case], exact: Tensor, served: _Served, arm: str
    ) -> Iterator[Sample]:
        scores = self._forced(cases, served)
        lengths = [len(part) for part in scores]
        distances = divergences(exact, torch.cat(scores), lengths)
        won = self._won(cases, served)
        for case, found, kl in zip(cases, _answers(cases, scores), distances, strict=True):
            differs = [i for i, t in enumerate(case.answer) if found[i] != t]
            yield Sample(
                kind=case.question.kind,
                arm=arm,
                correct=id(case) in won if not case.full_correct else not differs,
                full_correct=case.full_correct,
                kl=kl,
                diverged=differs[0] if differs else None,
                computed=served.computed[case.trial],
            )

    def _won(self, cases: Sequence[_Case], served: _Served) -> set[int]:
        """Cases that full prefill gets wrong and this arm's greedy answer gets right, by id.

        The greedy answer is the expected one when each token of it is the most likely one behind
        those before it.
        """
        wrong = [case for case in cases if not case.full_correct]
        wanted = [[*case.question.prompt, *case.question.answer[:-1]] for case in wrong]
        scores = served.engine.score([served.kept[case.trial] for case in wrong], wanted)
        answers = _answers(wrong, scores)
        return {
            id(case)
            for case, found in zip(wrong, answers, strict=True)
            if found == case.question.answer
        }


def _answers(cases: Sequence[_Case], scores: Sequence[Tensor]) -> list[tuple[int, ...]]:
    """Most likely tokens from the end of each question on."""
    picked = _picked(scores)
    return [tuple(p[len(c.question.prompt) - 1 :]) for c, p in zip(cases, picked, strict=True)]


def _picked(scores: Sequence[Tensor]) -> list[list[int]]:
    """Most likely token at every position of every part."""
    if not scores:
        return []
    flat = torch.cat(list(scores)).argmax(-1).tolist()
    bounds = [0, *itertools.accumulate(map(len, scores))]
    return [flat[first:end] for first, end in itertools.pairwise(bounds)]


def divergences(exact: Tensor, other: Tensor, lengths: Sequence[int]) -> list[float]:
    """Mean KL(exact || other) in nats of each part of the rows of scores [n, vocabulary]."""
    p, q = exact.double().log_softmax(-1), other.double().log_softmax(-1)
    each = (p.exp() * (p - q)).sum(-1).tolist()
    bounds = [0, *itertools.accumulate(lengths)]
    return [max(0.0, sum(each[a:b]) / (b - a)) for a, b in itertools.pairwise(bounds)]
