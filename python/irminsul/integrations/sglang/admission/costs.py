"""Holes of a prefill batch -> microseconds in each MLA form, and which spans are worth moving.

Must not know SGLang or tensors: model sizes, positions and measured rates only.

Attention over a row with prefix ``a`` and ``q`` tokens to compute can run in two forms. The
absorbed form reads the latent rows as they are and pays for 512-wide keys at every (query, key)
pair. The decompressed form expands the row's prefix to per-head keys and values first, in every
layer, and then pays less per pair. Rows of one request repeat that prefix, so holes that are short
are cheaper absorbed, holes that are long decompressed, and a short span between long holes costs
more than it saves. Rates were measured on an H200 (benches/serving/results/forms.json); other GPUs
keep about the same proportions, which is all that a choice needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Hole = tuple[int, int]


class _Sums(NamedTuple):
    """What holes cost depends on: rows, tokens, (query, key) pairs, and tokens before them."""

    rows: int
    tokens: int
    pairs: float
    behind: int

    @classmethod
    def of(cls, holes: Iterable[Hole]) -> _Sums:
        rows = tokens = behind = doubled = 0
        for start, end in holes:
            rows += 1
            tokens += end - start
            behind += start
            doubled += (end - start) * (start + end)  # causal: each query sees all before it
        return cls(rows, tokens, doubled / 2, behind)

    @classmethod
    def around(cls, start: int, end: int, spans: Iterable[Hole]) -> _Sums:
        """Return the sums of the holes that ascending `spans` leave of ``[start, end)``."""
        rows = behind = moved = doubled = 0
        position = start
        for low, high in spans:
            if low > position:
                rows += 1
                behind += position
            moved += high - low
            doubled += (high - low) * (low + high)
            position = high
        if end > position:
            rows += 1
            behind += position
        tokens = end - start
        return cls(rows, tokens - moved, (tokens * (start + end) - doubled) / 2, behind)


# Arithmetic per microsecond that a forward pass reaches, in FLOP.
_LINEAR = 3.7e8
_ABSORBED = 5.7e8
_DECOMPRESSED = 6.5e8
_EXPANSION = 3.8e8
# Microseconds for one more row, and for a batch that is planned at all.
_ROW = 130.0
_BATCH = 500.0
# SGLang's default of SGLANG_CHUNKED_PREFIX_CACHE_THRESHOLD.
_THRESHOLD = 8192


@dataclass(frozen=True)
class Costs:
    """Microseconds that the parts of a prefill take on one rank, over all layers.

    Parameters
    ----------
    token
        Projections and experts of one computed token.
    pair_absorbed, pair_decompressed
        One query attending to one key, all heads.
    expand
        One prefix token expanded to keys and values for one row.
    row
        One more row in the batch.
    batch
        A batch that moves anything, against one that does not.
    decompresses
        Whether the attention backend has the decompressed form for rows with a prefix.
    threshold
        Prefix tokens of all rows together from which on SGLang uses it for them; with fewer it
        absorbs, and with none it decompresses.
    """

    token: float
    pair_absorbed: float
    pair_decompressed: float
    expand: float
    row: float = _ROW
    batch: float = _BATCH
    decompresses: bool = True
    threshold: int = _THRESHOLD

    @classmethod
    def of_model(
        cls,
        config: Any,
        ranks: int = 1,
        *,
        decompresses: bool = True,
        threshold: int = _THRESHOLD,
    ) -> Costs:
        """Return the costs of a DeepSeek-style model.

        Parameters
        ----------
        config
            The model's Hugging Face configuration.
        ranks
            Tensor-parallel ranks that share its heads and experts.
        decompresses, threshold
            See the class.
        """
        layers, heads = config.num_hidden_layers, config.num_attention_heads
        rank, rope = config.kv_lora_rank, config.qk_rope_head_dim
        nope, value = config.qk_nope_head_dim, config.v_head_dim
        scale = 2.0 * layers * heads / ranks
        return cls(
            token=2.0 * _linear_weights(config) / ranks / _LINEAR,
            pair_absorbed=scale * (rank + rope + rank) / _ABSORBED,
            pair_decompressed=scale * (nope + rope + value) / _DECOMPRESSED,
            expand=scale * rank * (nope + value) / _EXPANSION,
            decompresses=decompresses,
            threshold=threshold,
        )

    def absorbed(self, holes: Iterable[Hole]) -> float:
        """Return what `holes` cost in the absorbed form."""
        return self._absorbed(_Sums.of(holes))

    def decompressed(self, holes: Iterable[Hole]) -> float:
        """Return what `holes` cost in the decompressed form."""
        return self._decompressed(_Sums.of(holes))

    def _absorbed(self, sums: _Sums) -> float:
        return self.row * sums.rows + self.token * sums.tokens + self.pair_absorbed * sums.pairs

    def _decompressed(self, sums: _Sums) -> float:
        pairs = self.pair_decompressed * sums.pairs
        return self.row * sums.rows + self.token * sums.tokens + pairs + self.expand * sums.behind

    def absorbs(self, holes: Sequence[Hole]) -> bool:
        """Return whether the absorbed form is the cheaper one for a batch of `holes`."""
        sums = _Sums.of(holes)
        return not self.decompresses or self._absorbed(sums) <= self._decompressed(sums)

    def worthwhile(self, start: int, end: int, spans: Sequence[Hole]) -> set[Hole]:
        """Return which of `spans` make the prefill of ``[start, end)`` cheapest.

        Parameters
        ----------
        start, end
            What the request has to prefill.
        spans
            Disjoint, ascending parts of it that could be moved.
        """
        kept: Sequence[Hole] = []
        least = self._cheapest(_Sums.around(start, end, ()))
        all_moved = self._cheapest(_Sums.around(start, end, spans)) + self.batch
        if all_moved < least:
            least, kept = all_moved, spans
        long = self._long(start, spans) if self.decompresses else spans
        if len(long) < len(spans):
            some_moved = self._cheapest(_Sums.around(start, end, long)) + self.batch
            kept = long if some_moved < least else kept
        return set(kept)

    def cheapest(self, holes: Iterable[Hole]) -> float:
        """Return what `holes` cost in the cheapest form that SGLang can be made to run them in."""
        return self._cheapest(_Sums.of(holes))

    def _cheapest(self, sums: _Sums) -> float:
        if not self.decompresses or 0 < sums.behind < self.threshold:
            return self._absorbed(sums)
        decompressed = self._decompressed(sums)
        return min(decompressed, self._absorbed(sums)) if sums.behind else decompressed

    def _long(self, start: int, spans: Sequence[Hole]) -> list[Hole]:
        """Return the spans that are worth a row of their own in the decompressed form."""
        kept: list[Hole] = []
        before = start
        token, pair, row, expand = self.token, self.pair_decompressed / 2, self.row, self.expand
        for low, high in spans:
            saved = (high - low) * (token + pair * (low + high))  # causal: half of all pairs
            # Right behind another span, or at the start, it makes no row: it only shortens one.
            spent = row + high * expand if low > before else 0.0
            if saved > spent:
                kept.append((low, high))
                before = high
        return kept


def _linear_weights(config: Any) -> float:
    """Return the weights that one token is multiplied with, in all layers."""
    hidden, heads = config.hidden_size, config.num_attention_heads
    query = heads * (config.qk_nope_head_dim + config.qk_rope_head_dim)
    low_rank = getattr(config, "q_lora_rank", None)
    attention = (
        (hidden * query if not low_rank else low_rank * (hidden + query))
        + hidden * (config.kv_lora_rank + config.qk_rope_head_dim)
        + heads * config.kv_lora_rank * (config.qk_nope_head_dim + config.v_head_dim)
        + heads * config.v_head_dim * hidden
    )
    layers, dense = config.num_hidden_layers, config.num_hidden_layers
    experts = 0
    if getattr(config, "n_routed_experts", None):
        dense = min(layers, getattr(config, "first_k_dense_replace", 0))
        used = config.num_experts_per_tok + (getattr(config, "n_shared_experts", None) or 0)
        experts = 3 * hidden * config.moe_intermediate_size * used
    feed_forward = 3 * hidden * config.intermediate_size
    return float(layers * attention + dense * feed_forward + (layers - dense) * experts)
