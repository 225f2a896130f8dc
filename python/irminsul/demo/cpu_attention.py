"""Absorbed queries and a pool of latent rows -> attention output, on the CPU.

Must not know any serving engine: plain tensors in, plain tensors out (`cpu_backend` adapts it).

An engine's generic CPU attention computes a whole sequence for every row of a batch, also when a
row asks for a handful of new queries. Prefill with reused spans has several short rows per request,
so its gain would vanish there. Here the work is what the new queries need: (queries) x (keys up to
each query), blocked over both, with a running softmax.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

__all__ = ["Row", "attend", "group_rows"]

# 128 tokens x a few heads against 2,048 keys keeps the score block (about 2 MiB) in the L2 cache.
QUERY_BLOCK = 128
KEY_BLOCK = 2048


@dataclass(frozen=True, slots=True)
class Row:
    """New queries of one stretch of a sequence.

    Attributes
    ----------
    sequence : int
        Which sequence the stretch belongs to; several rows may name the same one.
    prefix : int
        Position of the first query: the keys before it were computed or relocated already.
    queries : int
        Number of queries, at positions ``prefix .. prefix + queries - 1``.
    """

    sequence: int
    prefix: int
    queries: int

    @property
    def end(self) -> int:
        """Return the number of keys the last query sees."""
        return self.prefix + self.queries


def group_rows(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Yield runs of neighbouring rows of one sequence, so that its keys are gathered once."""
    group: list[Row] = []
    for row in rows:
        if group and group[-1].sequence != row.sequence:
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def attend(
    query: torch.Tensor,
    pool: torch.Tensor,
    slots: torch.Tensor,
    rows: Sequence[Row],
    scale: float,
    value_width: int,
) -> torch.Tensor:
    """Attend from new queries to all earlier keys of their sequences.

    Parameters
    ----------
    query : Tensor, [tokens, heads, width]
        Absorbed queries (latent part, then rotary part), the rows' queries one after the other.
    pool : Tensor, [slots, 1, width]
        Latent KV rows; the first `value_width` numbers of a row are also its value.
    slots : Tensor, [sequences, max_len], integer
        ``slots[s, p]`` is the pool row of position p of sequence s.
    rows : sequence of Row
        Which queries the tokens are. A sequence may appear in several rows (holes).
    scale : float
        Factor on the scores before the softmax.
    value_width : int
        Width of a value.

    Returns
    -------
    Tensor, [tokens, heads, value_width]
        In the dtype of `query`; arithmetic is fp32.

    Raises
    ------
    ValueError
        The rows do not add up to the number of queries.

    Notes
    -----
    Query i of a row sees the keys at positions ``<= prefix + i`` (causal, aligned at the row's
    end). The blocked softmax is the usual running one: with m the largest score so far,
    ``l = l * exp(m_old - m) + sum exp(s - m)`` and the same factor on the output.
    """
    total = sum(row.queries for row in rows)
    if total != query.shape[0]:
        raise ValueError(f"the rows hold {total} queries, but {query.shape[0]} were given")
    output = query.new_empty(query.shape[0], query.shape[1], value_width)
    start = 0
    for group in group_rows(rows):
        count = sum(row.queries for row in group)
        keys = _gather(pool, slots[group[0].sequence], max(row.end for row in group))
        part = slice(start, start + count)
        _attend_sequence(query[part], keys, _positions(group), scale, output[part])
        start += count
    return output


def _gather(pool: torch.Tensor, slots: torch.Tensor, length: int) -> torch.Tensor:
    """Return the first `length` keys of a sequence, [length, width] fp32."""
    return pool[slots[:length].long(), 0].float()


def _positions(group: Sequence[Row]) -> torch.Tensor:
    return torch.cat([torch.arange(row.prefix, row.end) for row in group])


def _attend_sequence(
    query: torch.Tensor,  # [tokens, heads, width]
    keys: torch.Tensor,  # [length, width] fp32
    positions: torch.Tensor,  # [tokens]
    scale: float,
    output: torch.Tensor,  # [tokens, heads, value_width], written
) -> None:
    heads, value_width = query.shape[1], output.shape[2]
    for start in range(0, query.shape[0], QUERY_BLOCK):
        block = slice(start, start + QUERY_BLOCK)
        # One matrix of all heads' queries: the heads share their keys.
        flat = (query[block].float() * scale).flatten(0, 1)
        seen = positions[block].repeat_interleave(heads)
        result = _attend_block(flat, keys, seen, value_width)
        output[block] = result.view(-1, heads, value_width).to(output.dtype)


def _attend_block(
    query: torch.Tensor,  # [rows, width] fp32, scaled
    keys: torch.Tensor,  # [length, width] fp32
    seen: torch.Tensor,  # [rows] last visible position
    value_width: int,
) -> torch.Tensor:
    first_hidden, length = int(seen.min()) + 1, int(seen.max()) + 1
    top = query.new_full((query.shape[0], 1), -torch.inf)
    norm = query.new_zeros((query.shape[0], 1))
    output = query.new_zeros((query.shape[0], value_width))
    for start in range(0, length, KEY_BLOCK):
        block = keys[start : min(start + KEY_BLOCK, length)]
        scores = query @ block.T
        if start + block.shape[0] > first_hidden:
            key_positions = torch.arange(start, start + block.shape[0])
            scores.masked_fill_(key_positions > seen[:, None], -torch.inf)
        # Key 0 is visible to every query, so `new_top` is finite from the first block on.
        new_top = torch.maximum(top, scores.amax(1, keepdim=True))
        decay = torch.exp(top - new_top)
        weights = scores.sub_(new_top).exp_()
        norm = norm * decay + weights.sum(1, keepdim=True)
        output = output.mul_(decay).addmm_(weights, block[:, :value_width])
        top = new_top
    return output.div_(norm)
