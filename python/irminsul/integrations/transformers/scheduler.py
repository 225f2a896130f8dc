"""Waiting prompts -> waves that fit the pool: rows moved in, holes computed, tokens chosen.

Must not know the modules of a model or how text is matched.
"""

from __future__ import annotations

from collections.abc import Sequence as AbstractSequence

import numpy as np
import torch
from torch import Tensor

from irminsul.attention import PAGE_SIZE
from irminsul.errors import InvalidParams
from irminsul.integrations.transformers.batch import (
    Stretch,
    chunked,
    make_batch,
    positions_of,
    slots_of,
)
from irminsul.integrations.transformers.family import Family
from irminsul.integrations.transformers.forward import Runner
from irminsul.integrations.transformers.mentions import relink
from irminsul.integrations.transformers.pool import Rows
from irminsul.integrations.transformers.results import Generation
from irminsul.integrations.transformers.sequence import Prompt, Request, Sequence
from irminsul.integrations.transformers.spans import Span, check_spans, holes
from irminsul.integrations.transformers.store import Store

__all__ = ["Scheduler"]


class Scheduler:
    """Runs prompts in waves.

    Parameters
    ----------
    chunk_tokens : int
        Most tokens of one forward pass.
    relink : float
        See `irminsul.integrations.transformers.mentions.relink`.
    """

    def __init__(
        self,
        family: Family,
        rows: Rows,
        runner: Runner,
        store: Store,
        chunk_tokens: int,
        relink: float = 0.0,
    ) -> None:
        self._family = family
        self._rows = rows
        self._runner = runner
        self._store = store
        self._chunk_tokens = chunk_tokens
        self._relink = relink
        names = ("prompts", "forwards", "computed_tokens", "reused_tokens", "generated_tokens")
        self.counts = dict.fromkeys(names, 0)

    def run(self, prompts: AbstractSequence[Prompt], request: Request) -> list[Generation]:
        """Answer all prompts; as many at a time as have room."""
        for prompt in prompts:  # refuse before anything is computed
            self._pages_for(len(prompt.tokens), request)
        answers: list[Generation] = []
        while len(answers) < len(prompts):
            wave: list[Sequence] = []
            try:
                for index in range(len(answers), len(prompts)):
                    admitted = self._admit(index, prompts[index], request, alone=not wave)
                    if admitted is None:
                        break
                    wave.append(admitted)
                self._prefill(wave, request)
                self._decode(wave, request)
                while wave:  # whoever is finished has its pages no more
                    answers.append(self._finish(wave.pop(0), request))
            except BaseException:
                for sequence in wave:
                    self._store.pages.give(sequence.pages)
                raise
        return answers

    def spans(self, prompt: Prompt, request: Request) -> tuple[list[Span], int]:
        """Spans for one prompt, and how many positions of them are its exact prefix."""
        tokens, namespace = prompt.tokens, prompt.namespace
        if callable(request.reuse):
            spans = list(request.reuse(tokens.tolist()))
            check_spans(spans, len(tokens), self._family.max_positions)
            self._store.check_rows(spans)
            return spans, 0
        if request.reuse is False:
            return [], 0
        exact = request.reuse == "prefix"
        prefix = self._store.prefix(tokens, namespace, exact=exact)
        behind = [] if exact else self._store.plan(tokens, namespace, prefix)
        behind = relink(tokens, prefix, behind, self._relink)
        return prefix + behind, prefix[-1].end if prefix else 0

    def _admit(
        self, index: int, prompt: Prompt, request: Request, *, alone: bool
    ) -> Sequence | None:
        """Give a prompt pages and move its spans' rows there, or None while others hold them."""
        tokens = prompt.tokens
        spans, prefix_len = self.spans(prompt, request)
        needed = self._pages_for(len(tokens), request)
        pages = self._store.make_room(needed, spans)
        if pages is None and alone:
            spans, prefix_len = [], 0  # its donors are in the way
            pages = self._store.make_room(needed, spans)
        if pages is None:
            return None
        self._store.touch(spans)
        slots = slots_of(pages)
        try:
            self._move(spans, slots)
        except BaseException:
            self._store.pages.give(pages)
            raise
        self.counts["prompts"] += 1
        self.counts["reused_tokens"] += sum(span.length for span in spans)
        generator = request.sampling.generator(index)
        return Sequence(tokens.tolist(), prompt, spans, prefix_len, pages, slots, generator)

    def _pages_for(self, prompt_len: int, request: Request) -> int:
        """Count the pages of a prompt and its answer, whose last token never gets a row."""
        needed = -(-(prompt_len + max(request.max_new_tokens - 1, 0)) // PAGE_SIZE)
        if needed > self._store.pages.count:
            raise InvalidParams(
                f"a prompt of {prompt_len} tokens with up to {request.max_new_tokens} new ones "
                f"needs {needed} pages of {PAGE_SIZE}; there are {self._store.pages.count}"
            )
        return needed

    def _move(self, spans: AbstractSequence[Span], slots: Tensor) -> None:
        """Copy the spans' rows into a sequence's own slots, keys turned."""
        if not spans:
            return
        kept = self._store.kept
        source = torch.cat(
            [
                kept[piece.sequence].slots[piece.start : piece.start + piece.length]
                for span in spans
                for piece in span.pieces
            ]
        )
        lengths = [span.length for span in spans]
        target = slots[positions_of([span.target for span in spans], lengths)]
        turns = torch.tensor([span.rotation for span in spans])
        rotation = torch.repeat_interleave(turns, torch.tensor(lengths))
        device = self._family.device
        self._rows.move(source.to(device), target.to(device), rotation.to(device))

    def _prefill(self, wave: AbstractSequence[Sequence], request: Request) -> None:
        """Compute every hole of every prompt, `chunk_tokens` at a time."""
        todo = [
            (sequence, start, end)
            for sequence in wave
            for start, end in holes(sequence.spans, sequence.prompt_len)
        ]
        for chunk in chunked(todo, self._chunk_tokens):
            self._forward(chunk, request, request.logits == "computed")

    def _decode(self, wave: AbstractSequence[Sequence], request: Request) -> None:
        """Choose tokens and compute their rows until every sequence is done."""
        for sequence in wave:
            sequence.done = request.max_new_tokens == 0
        while active := [sequence for sequence in wave if not sequence.done]:
            for sequence in active:
                assert sequence.last is not None
                sequence.append(request.sampling.choose(sequence.last, sequence.generator), request)
                self.counts["generated_tokens"] += 1
            ends = [(s, len(s.tokens) - 1, len(s.tokens)) for s in active if not s.done]
            for chunk in chunked(ends, self._chunk_tokens):
                self._forward(chunk, request, request.logits != "none")

    def _forward(
        self, chunk: list[tuple[Sequence, int, int]], request: Request, all_logits: bool
    ) -> None:
        """Run one batch, and score the next token where a prompt ends or scores are wanted."""
        stretches: list[Stretch] = [s.stretch(start, end) for s, start, end in chunk]
        heads = self._family.num_heads if self._family.latent else None
        batch = make_batch(stretches, self._family.device, heads=heads)
        hidden = self._runner(batch)
        self.counts["forwards"] += 1
        self.counts["computed_tokens"] += len(hidden)
        wanted = [_wanted(s, start, end, all_logits) for s, start, end in chunk]
        rows = [
            first + at for first, found in zip(batch.bounds, wanted, strict=False) for at in found
        ]
        if not rows:
            return
        scores = self._runner.logits(hidden[rows])
        parts = torch.split(scores, [len(found) for found in wanted])
        for (sequence, start, end), found, part in zip(chunk, wanted, parts, strict=True):
            final = end >= sequence.prompt_len
            if final:
                sequence.last = part[-1]
            if all_logits or (request.logits == "generated" and final):
                sequence.show(part, [start + at for at in found])

    def _finish(self, sequence: Sequence, request: Request) -> Generation:
        """Keep the rows or give the pages back."""
        if request.record:
            tokens = np.array(sequence.tokens[: sequence.rows], dtype=np.uint32)
            self._store.keep(
                tokens, sequence.pages, sequence.slots, sequence.parts(), sequence.prompt.namespace
            )
        else:
            self._store.pages.give(sequence.pages)
        return sequence.generation()


def _wanted(sequence: Sequence, start: int, end: int, everything: bool) -> list[int]:
    """Offsets in a stretch whose scores are needed."""
    final = end >= sequence.prompt_len
    first = max(0, sequence.prompt.logits_from - start) if everything else end - start
    return list(range(min(first, end - start - final), end - start))
