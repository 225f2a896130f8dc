"""Prompts of token ids -> generated ids, with KV rows of known text taken over at any position.

Must not know how attention or matching work.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from irminsul._core import ChunkParams, Namespace, Policy
from irminsul.attention import PAGE_SIZE
from irminsul.errors import InvalidParams
from irminsul.integrations.transformers.family import describe
from irminsul.integrations.transformers.forward import Runner
from irminsul.integrations.transformers.pool import Pages, make_rows
from irminsul.integrations.transformers.results import Generation
from irminsul.integrations.transformers.sampling import Sampling
from irminsul.integrations.transformers.scheduler import Scheduler
from irminsul.integrations.transformers.scoring import Scorer
from irminsul.integrations.transformers.sequence import Logits, Prompt, Request, Reusing
from irminsul.integrations.transformers.spans import Span
from irminsul.integrations.transformers.store import Store, TokenArray, token_ids
from irminsul.mentions import check_share
from irminsul.rotation import check_relocations

__all__ = ["PICEngine"]


class PICEngine:
    """A small engine for models of the transformers library with position-independent reuse.

    DeepSeek-V2 and V3 models keep latent rows and attend to them absorbed, through
    `irminsul.attention` (its CUDA kernel for bfloat16 on an H100 or H200, plain torch elsewhere).
    Llama, Mistral, Qwen2 and Qwen3 models keep whole keys, which are turned as a whole; that is for
    comparison, since their values and keys carry more of their context.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A causal language model in evaluation mode. It is not changed.
    capacity_tokens : int
        Token slots for running and kept sequences; each takes a row in every layer.
    chunk_tokens : int
        Most tokens that one forward pass computes.
    policy : Policy, optional
        What may be reused.
    params : ChunkParams, optional
        How prompts are cut into chunks.
    relink : float
        Most of the rows taken over, from 0 to 1, that is computed again because of what stands
        before them now: rare tokens with an earlier mention that their row has not seen.

    Raises
    ------
    Unsupported
        The model cannot be served; the message says why.
    InvalidParams
        A size is not positive, or the model is in training mode.

    Examples
    --------
    >>> engine = PICEngine(model)                                   # doctest: +SKIP
    >>> engine.generate([document + question], max_new_tokens=8)    # doctest: +SKIP
    >>> engine.generate([other_header + document + question])[0].stats.reused  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Any,
        *,
        capacity_tokens: int = 65_536,
        chunk_tokens: int = 2_048,
        policy: Policy | None = None,
        params: ChunkParams | None = None,
        relink: float = 0.0,
    ) -> None:
        for name, value in (("capacity_tokens", capacity_tokens), ("chunk_tokens", chunk_tokens)):
            if value < 1:
                raise InvalidParams(f"{name} is {value}; it must be at least 1")
        self._family = describe(model)
        pages = -(-capacity_tokens // PAGE_SIZE)
        self._rows = make_rows(self._family, pages)
        self._vocabulary = int(model.config.vocab_size)
        self._store = Store(
            Pages(pages), pages * PAGE_SIZE, params or ChunkParams(), policy or Policy()
        )
        runner = Runner(model, self._family, self._rows)
        self._scheduler = Scheduler(
            self._family, self._rows, runner, self._store, chunk_tokens, check_share(relink)
        )
        self._scorer = Scorer(self._family, self._rows, runner, self._store, chunk_tokens)
        self._lock = threading.Lock()

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        reuse: Reusing = True,
        max_new_tokens: int = 16,
        sampling: Sampling | None = None,
        stop: Sequence[int] = (),
        logits: Logits = "none",
        record: bool = True,
        logits_from: Sequence[int] | None = None,
        tenant: str | Sequence[str] = "",
    ) -> list[Generation]:
        """Answer prompts, together as far as their rows fit.

        Parameters
        ----------
        prompts : sequence of sequences of int
            Token ids.
        reuse : bool, "prefix" or Planner
            True takes over the longest exact prefix and, behind it, whatever text is known; False
            computes everything; "prefix" takes over exact prefixes only. A callable is asked for
            the spans of each prompt.
        max_new_tokens : int
            0 computes the prompt only.
        sampling : Sampling, optional
            Greedy by default.
        stop : sequence of int
            Token ids that end an answer.
        logits : {"none", "generated", "computed"}
            Return no scores, those that chose the new tokens, or those of every computed position.
        record : bool
            Keep the rows for later prompts.
        logits_from : sequence of int, optional
            For each prompt the first position whose scores ``logits="computed"`` returns.
        tenant : str or sequence of str
            Rows are shared within one tenant only; one for all prompts, or one for each.

        Returns
        -------
        list of Generation
            In the order of `prompts`.

        Raises
        ------
        InvalidTokens
            A prompt is empty or holds an id outside the vocabulary.
        InvalidParams
            A prompt with its answer exceeds the model's positions or the capacity, or a planner's
            spans overlap or name rows that are not kept.
        """
        if max_new_tokens < 0:
            raise InvalidParams(f"max_new_tokens is {max_new_tokens}; it must be 0 or more")
        entries = self._prompts(prompts, max_new_tokens, logits_from, tenant)
        _check_choices(reuse, logits)
        request = Request(
            reuse=reuse,
            max_new_tokens=max_new_tokens,
            sampling=sampling or Sampling(),
            stop=frozenset(stop),
            logits=logits,
            record=record,
        )
        with self._lock:
            answers = self._scheduler.run(entries, request)
            if self._family.device.type == "cuda":
                check_relocations()
        return answers

    def plan(self, prompt: Sequence[int], *, tenant: str = "") -> list[Span]:
        """Return the spans that `generate` would take over, the exact prefix first."""
        (entry,) = self._prompts([prompt], 0, None, tenant)
        request = Request(True, 0, Sampling(), frozenset(), "none", False)
        with self._lock:
            return self._scheduler.spans(entry, request)[0]

    def score(
        self, sequences: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> list[Tensor]:
        """Scores of what follows each token, if these tokens came behind kept sequences.

        The sequences' rows are read where they are, and nothing new is kept; so many continuations
        of one long context cost little more than their own tokens.

        Parameters
        ----------
        sequences : sequence of int
            Numbers of kept sequences, see `kept`; a number may come again.
        continuations : sequence of sequences of int
            Token ids to put behind each of them.

        Returns
        -------
        list of Tensor, float32, [tokens of the continuation, vocabulary]

        Raises
        ------
        InvalidTokens
            A continuation is empty or holds an id outside the vocabulary.
        InvalidParams
            A sequence is not kept, ends beyond the model's positions with its continuation, or
            there is no room.
        """
        if len(sequences) != len(continuations):
            raise InvalidParams(
                f"{len(continuations)} continuations for {len(sequences)} sequences; there must be "
                "one for each"
            )
        checked = [self._checked(tokens, 0) for tokens in continuations]
        with self._lock:
            for number, tokens in zip(sequences, checked, strict=True):
                if (kept := self._store.kept.get(number)) is None:
                    raise InvalidParams(f"sequence {number} is not kept")
                self._check_length(len(kept.tokens) + len(tokens), 0)
            found = self._scorer.run(sequences, [tokens.tolist() for tokens in checked])
            if self._family.device.type == "cuda":
                check_relocations()
        return found

    def kept(self) -> list[int]:
        """Numbers of the kept sequences, oldest first."""
        with self._lock:
            return list(self._store.kept)

    def read_rows(self, sequence: int, layer: int) -> Tensor:
        """Rows of a kept sequence in one layer, [tokens, numbers per row]: for studies."""
        with self._lock:
            if (kept := self._store.kept.get(sequence)) is None:
                raise InvalidParams(f"sequence {sequence} is not kept")
            if not 0 <= layer < len(self._family.attentions):
                raise InvalidParams(
                    f"layer {layer}: the model has 0 to {len(self._family.attentions) - 1}"
                )
            slots = kept.slots[: len(kept.tokens)]
            return self._rows.read(layer, slots.to(self._family.device))

    def forget(self, sequences: Sequence[int]) -> None:
        """Give up kept sequences; numbers that are not kept are passed over."""
        with self._lock:
            for number in sequences:
                if number in self._store.kept:
                    self._store.forget(number)

    def clear(self) -> None:
        """Forget all kept sequences; call it after changing the model's weights."""
        with self._lock:
            self._store.clear()

    def stats(self) -> dict[str, int]:
        """Totals since the start, and what is kept now."""
        with self._lock:
            return {
                **self._scheduler.counts,
                "kept_sequences": len(self._store.kept),
                "kept_tokens": sum(len(kept.tokens) for kept in self._store.kept.values()),
                "forgotten_sequences": self._store.forgotten,
            }

    def _prompts(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        logits_from: Sequence[int] | None,
        tenant: str | Sequence[str],
    ) -> list[Prompt]:
        """Check prompts and what is given for each of them."""
        tenants = [tenant] * len(prompts) if isinstance(tenant, str) else tenant
        firsts = [0] * len(prompts) if logits_from is None else logits_from
        for name, values in (("tenant", tenants), ("logits_from", firsts)):
            if len(values) != len(prompts):
                raise InvalidParams(
                    f"{name} has {len(values)} entries for {len(prompts)} prompts; it must have "
                    "one for each"
                )
        return [
            Prompt(
                self._checked(prompt, max_new_tokens),
                Namespace(model=self._family.name, tenant=tenant),
                first,
            )
            for prompt, tenant, first in zip(prompts, tenants, firsts, strict=True)
        ]

    def _checked(self, prompt: Sequence[int], max_new_tokens: int) -> TokenArray:
        """Token ids as an array, or an error that names the value."""
        ids = token_ids(prompt, self._vocabulary)
        self._check_length(len(ids), max_new_tokens)
        return ids

    def _check_length(self, tokens: int, max_new_tokens: int) -> None:
        """Refuse what exceeds the model's positions."""
        if tokens + max(max_new_tokens - 1, 0) > self._family.max_positions:
            raise InvalidParams(
                f"a prompt of {tokens} tokens with up to {max_new_tokens} new ones exceeds the "
                f"model's {self._family.max_positions} positions"
            )


def _check_choices(reuse: Reusing, logits: Logits) -> None:
    if logits not in ("none", "generated", "computed"):
        raise InvalidParams(f"logits is {logits!r}; it must be none, generated or computed")
    if not callable(reuse) and reuse not in (True, False, "prefix"):
        raise InvalidParams(f"reuse is {reuse!r}; it must be a bool, 'prefix' or a planner")
