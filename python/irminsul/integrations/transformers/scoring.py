"""Kept sequences and tokens that would follow them -> scores, without copying what is kept.

Must not know plans or sampling. A continuation reads the full pages of its sequence where they lie
and has pages of its own for the rest, which are given back at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from irminsul.attention import PAGE_SIZE
from irminsul.errors import InvalidParams
from irminsul.integrations.transformers.batch import Stretch, chunked, make_batch, slots_of
from irminsul.integrations.transformers.family import Family
from irminsul.integrations.transformers.forward import Runner
from irminsul.integrations.transformers.pool import Rows
from irminsul.integrations.transformers.spans import RowPiece, Span
from irminsul.integrations.transformers.store import Kept, Store

__all__ = ["Scorer"]


@dataclass(frozen=True, eq=False)
class _Continuation:
    """Tokens behind a kept sequence.

    Attributes
    ----------
    start : int
        Position of the first one.
    slots : Tensor, int64, [positions], on the CPU
        Full pages of the sequence, then `pages`.
    end : Tensor, int64, on the CPU
        Slots of the sequence's rows behind its last full page.
    """

    start: int
    tokens: Tensor
    slots: Tensor
    pages: list[int]
    end: Tensor

    def stretch(self, first: int, end: int) -> Stretch:
        """Return tokens [first, end) as a piece of a batch."""
        return Stretch(self.tokens[first:end], self.start + first, self.slots)


class Scorer:
    """Scores continuations.

    Parameters
    ----------
    chunk_tokens : int
        Most tokens of one forward pass.
    """

    def __init__(
        self, family: Family, rows: Rows, runner: Runner, store: Store, chunk_tokens: int
    ) -> None:
        self._family, self._rows, self._runner = family, rows, runner
        self._store = store
        self._chunk_tokens = chunk_tokens

    def run(self, sequences: Sequence[int], continuations: Sequence[Sequence[int]]) -> list[Tensor]:
        """Scores after each token of each continuation, [tokens, vocabulary], fp32."""
        held = [Span(0, (RowPiece(number, 0, 1),), 0) for number in set(sequences)]
        self._store.check_rows(held)
        found: list[Tensor] = []
        while len(found) < len(continuations):
            wave: list[_Continuation] = []
            try:
                for number, tokens in zip(
                    sequences[len(found) :], continuations[len(found) :], strict=True
                ):
                    added = self._add(self._store.kept[number], tokens, held)
                    if added is None:
                        break
                    wave.append(added)
                if not wave:
                    raise InvalidParams(
                        f"no room for a continuation of {len(continuations[len(found)])} tokens "
                        f"beside the {len(held)} sequences of this call; give more capacity_tokens"
                    )
                self._copy_ends(wave)
                found += self._scores(wave)
            finally:
                for continuation in wave:
                    self._store.pages.give(continuation.pages)
        return found

    def _add(self, kept: Kept, tokens: Sequence[int], held: Sequence[Span]) -> _Continuation | None:
        """Give a continuation pages, or None while there are none."""
        start, whole = len(kept.tokens), len(kept.tokens) // PAGE_SIZE * PAGE_SIZE
        needed = -(-(start + len(tokens) - whole) // PAGE_SIZE)
        pages = self._store.pages.take(needed) or self._store.make_room(needed, held)
        if pages is None:
            return None
        slots = torch.cat([kept.slots[:whole], slots_of(pages)])
        return _Continuation(start, torch.tensor(tokens), slots, pages, kept.slots[whole:start])

    def _copy_ends(self, wave: Sequence[_Continuation]) -> None:
        """Put the rows behind the last full pages where the continuations can go on."""
        source = torch.cat([continuation.end for continuation in wave])
        target = torch.cat([c.slots[c.start - len(c.end) : c.start] for c in wave])
        if len(source):
            device = self._family.device
            turned = torch.zeros(len(source), dtype=torch.int64, device=device)
            self._rows.move(source.to(device), target.to(device), turned)

    def _scores(self, wave: Sequence[_Continuation]) -> list[Tensor]:
        """Compute all tokens of all continuations."""
        heads = self._family.num_heads if self._family.latent else None
        parts: list[Tensor] = []
        todo = [(continuation, 0, len(continuation.tokens)) for continuation in wave]
        for chunk in chunked(todo, self._chunk_tokens):
            stretches = [continuation.stretch(first, end) for continuation, first, end in chunk]
            batch = make_batch(stretches, self._family.device, heads=heads)
            parts.append(self._runner.logits(self._runner(batch)))
        lengths = [len(continuation.tokens) for continuation in wave]
        return list(torch.split(torch.cat(parts), lengths))
