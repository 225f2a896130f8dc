"""One prompt on its way through the engine: its tokens, pages, spans, and what it has produced.

Must not know models, pools or registries.
"""

from __future__ import annotations

from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from irminsul._core import Namespace
from irminsul.integrations.transformers.batch import Stretch
from irminsul.integrations.transformers.results import Generation, PromptStats
from irminsul.integrations.transformers.sampling import Sampling
from irminsul.integrations.transformers.spans import Planner, Span, holes
from irminsul.integrations.transformers.store import Part, TokenArray

__all__ = ["Logits", "Prompt", "Request", "Reusing", "Sequence"]

Logits = Literal["none", "generated", "computed"]
Reusing = bool | Literal["prefix"] | Planner


@dataclass(frozen=True)
class Request:
    """What all prompts of one call have in common; see `PICEngine.generate`."""

    reuse: Reusing
    max_new_tokens: int
    sampling: Sampling
    stop: frozenset[int]
    logits: Logits
    record: bool


@dataclass(frozen=True)
class Prompt:
    """What belongs to one prompt of a call."""

    tokens: TokenArray
    namespace: Namespace
    logits_from: int = 0


@dataclass(eq=False)
class Sequence:
    """State of one prompt.

    Attributes
    ----------
    tokens : list of int
        The prompt, then the new tokens.
    prefix_len : int
        Positions that the exact prefix covers.
    pages, slots : list of int; Tensor, int64, [positions]
        Pages of the sequence and their token slots.
    last : Tensor or None, float32, [vocabulary]
        Scores of the token that comes next.
    """

    tokens: list[int]
    prompt: Prompt
    spans: AbstractSequence[Span]
    prefix_len: int
    pages: list[int]
    slots: Tensor
    generator: torch.Generator
    last: Tensor | None = None
    done: bool = False
    logits: list[Tensor] = field(default_factory=list)
    logit_positions: list[int] = field(default_factory=list)

    def stretch(self, start: int, end: int) -> Stretch:
        """Return positions [start, end) as a piece of a batch."""
        if end <= self.prompt_len:
            tokens = torch.from_numpy(self.prompt.tokens[start:end].astype(np.int64))
        else:
            tokens = torch.tensor(self.tokens[start:end])
        return Stretch(tokens, start, self.slots)

    def append(self, token: int, request: Request) -> None:
        """Add a new token and see whether it was the last one."""
        self.tokens.append(token)
        new = len(self.tokens) - self.prompt_len
        self.done = token in request.stop or new >= request.max_new_tokens

    def show(self, scores: Tensor, positions: list[int]) -> None:
        """Add scores that the caller wants to see; those before `logits_from` are left out."""
        hidden = sum(position < self.prompt.logits_from for position in positions)
        if hidden < len(positions):
            self.logits.append(scores[hidden:])
            self.logit_positions += positions[hidden:]

    @property
    def prompt_len(self) -> int:
        """Number of given tokens."""
        return len(self.prompt.tokens)

    @property
    def rows(self) -> int:
        """Positions that have rows: all but the last new token."""
        return max(self.prompt_len, len(self.tokens) - 1)

    def parts(self) -> list[Part]:
        """Return the rows' history: a computed one stands on the deepest row before it."""
        parts: list[Part] = []
        depth = 0
        edges: list[tuple[int, int, Span | None]] = [(s.target, s.end, s) for s in self.spans]
        edges += [(start, end, None) for start, end in holes(self.spans, self.rows)]
        for _, end, span in sorted(edges, key=lambda edge: edge[0]):
            depth = max(depth, span.depth if span else 0)
            parts.append(Part(end, span.hops, span.depth) if span else Part(end, 0, depth))
        return parts

    def generation(self) -> Generation:
        """Return the answer so far."""
        return Generation(
            tokens=self.tokens[self.prompt_len :],
            stats=self.stats(),
            logits=torch.cat(self.logits) if self.logits else None,
            logit_positions=self.logit_positions,
        )

    def stats(self) -> PromptStats:
        """Count where the prompt's rows came from."""
        behind = [span for span in self.spans if span.end > self.prefix_len]
        reused = sum(span.length for span in behind)
        return PromptStats(
            prompt=self.prompt_len,
            prefix=self.prefix_len,
            reused=reused,
            computed=self.prompt_len - self.prefix_len - reused,
            spans=len(behind),
            depth=max((span.depth for span in self.spans), default=0),
        )
