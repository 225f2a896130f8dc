"""A forward batch of SGLang -> the rows and key tiles that `mla_attention` reads.

Plain tensors in and out: must not import SGLang, nor know layers or kernels.

The pool's rows stand 64 to a page of ours, whatever the engine's page size: a token's slot is
``page * 64 + offset``. With engine pages of 64 a row's tiles are its pages. With smaller ones they
are found from its slots, neighbours joined, so that a sequence allocated in one go has as few.
On a GPU both read SGLang's table of slots in place; nothing of its width is gathered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from irminsul.attention import (
    PAGE_SIZE,
    KeySpan,
    TileTable,
    plan_attention,
    tiles_from_pages,
    tiles_from_spans,
)
from irminsul.integrations.sglang.share.tables import LoanTables


@dataclass
class Rows:
    """Queries of one batch and the keys that each may see.

    Parameters
    ----------
    table : TileTable
        Keys of each row.
    q_indptr : Tensor, int32, [rows + 1]
        Tokens of each row.
    q_pos : Tensor, int32, [rows]
        Position of each row's first token.
    max_q_len : int
        Most tokens of a row.
    """

    table: TileTable
    q_indptr: Tensor
    q_pos: Tensor
    max_q_len: int
    _plans: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def plan(self, total_q: int, num_heads: int) -> Tensor:
        """Return the division of work for queries of this shape; made once for all layers."""
        shape = (total_q, num_heads)
        if shape not in self._plans:
            self._plans[shape] = plan_attention(
                self.table,
                self.q_indptr,
                self.q_pos,
                total_q=total_q,
                num_heads=num_heads,
                max_q_len=self.max_q_len,
            )
        return self._plans[shape]


def decode_rows(
    slots: Tensor,
    sequences: Tensor,
    lengths: Tensor,
    tokens: int,
    page: int,
    loans: LoanTables | None = None,
) -> Rows:
    """Rows of a batch in which every sequence asks for its last tokens.

    Nothing here waits for the device or depends on values: it may be recorded into a CUDA graph.

    Parameters
    ----------
    slots : Tensor, int32, [sequences, width]
        ``slots[s, p]`` is the pool row of position ``p`` of sequence ``s``.
    sequences : Tensor, integer, [rows]
        Which sequence each row belongs to.
    lengths : Tensor, integer, [rows]
        Keys of each row, its own new tokens included.
    tokens : int
        New tokens of each row, the last of its keys.
    page : int
        Token slots that the engine allocates together.
    loans : LoanTables, optional
        Pages that sequences borrow, where they may.
    """
    table = _tiles(slots, sequences, lengths, page, loans)
    if slots.is_cuda:
        from irminsul.integrations.sglang.attention.kernels import last_tokens

        return Rows(table, *last_tokens(lengths, tokens), tokens)
    end = (len(sequences) + 1) * tokens
    indptr = torch.arange(0, end, tokens, dtype=torch.int32, device=slots.device)
    return Rows(table, indptr, lengths.to(torch.int32) - tokens, tokens)


def extend_rows(
    slots: Tensor,
    sequences: Tensor,
    prefixes: Tensor,
    counts: Tensor,
    page: int,
    *,
    most_tokens: int,
    most_keys: int,
    loans: LoanTables | None = None,
) -> Rows:
    """Rows of a batch in which each asks for tokens at any place of its sequence.

    Parameters
    ----------
    slots, sequences, page, loans
        See `decode_rows`. Several rows may belong to one sequence.
    prefixes : Tensor, integer, [rows]
        Position of each row's first token.
    counts : Tensor, integer, [rows]
        Tokens of each row.
    most_tokens, most_keys : int
        Largest count, and largest prefix plus count.
    """
    counts = counts.to(torch.int32)
    indptr = torch.zeros(len(counts) + 1, dtype=torch.int32, device=slots.device)
    torch.cumsum(counts, 0, dtype=torch.int32, out=indptr[1:])
    prefixes = prefixes.to(torch.int32)
    table = _tiles(slots[:, :most_keys], sequences, prefixes + counts, page, loans)
    return Rows(table, indptr, prefixes, most_tokens)


def _tiles(
    slots: Tensor, sequences: Tensor, lengths: Tensor, page: int, loans: LoanTables | None
) -> TileTable:
    """Keys at positions ``0 .. length`` of each row's sequence."""
    if loans is not None and loans.in_use:
        return loans.compose(slots, sequences, lengths)
    if slots.is_cuda:
        from irminsul.integrations.sglang.attention.kernels import page_tiles
        from irminsul.integrations.sglang.attention.slot_kernels import slot_tiles

        if page == PAGE_SIZE:
            return page_tiles(slots, sequences, lengths)
        return slot_tiles(slots, sequences, lengths, page)
    if page == PAGE_SIZE:
        pages = (slots[:, ::PAGE_SIZE][sequences] // PAGE_SIZE).int()
        return tiles_from_pages(pages, lengths.int())
    own = slots[sequences].int()
    spans = [[KeySpan(row[:n], 0)] for row, n in zip(own, lengths.tolist(), strict=True)]
    return tiles_from_spans(spans)


def pages_of(rows: Tensor) -> Tensor:
    """View a pool's rows, [slots, 1, 576], as pages of 64 slots, [pages, 64, 576]."""
    return rows.view(-1, PAGE_SIZE, rows.shape[-1])


def refusals(runner: Any, arguments: Any, *, on_gpu: bool, has_kernel: bool) -> list[str]:
    """Return why the attention kernel cannot serve a model runner; empty when it can.

    Parameters
    ----------
    runner : ModelRunner
        SGLang's, with its pools in place.
    arguments
        The engine's, as SGLang resolved them; those that were typed may be None still.
    on_gpu, has_kernel : bool
        Whether the model is on a GPU, and whether the kernel runs there. Elsewhere the reference
        does the work: right, and slow.
    """
    reasons = []
    pool = runner.token_to_kv_pool
    if not runner.use_mla_backend:
        return ["the model has no MLA attention"]
    if (pool.kv_lora_rank, pool.qk_rope_head_dim) != (512, 64):
        reasons.append(
            f"its rows are {pool.kv_lora_rank} + {pool.qk_rope_head_dim} numbers, not 512 + 64"
        )
    if on_gpu and pool.store_dtype != torch.bfloat16:
        reasons.append(f"its rows are {pool.store_dtype}: use --kv-cache-dtype auto with bf16")
    if PAGE_SIZE % runner.page_size:
        reasons.append(f"pages of {runner.page_size} tokens do not divide {PAGE_SIZE}")
    slots = pool.size + runner.page_size
    if slots % PAGE_SIZE:
        reasons.append(
            f"a pool of {slots} rows is no multiple of {PAGE_SIZE}: use --page-size {PAGE_SIZE}, "
            f"or --max-total-tokens {slots // PAGE_SIZE * PAGE_SIZE - runner.page_size}"
        )
    if on_gpu and not has_kernel:
        reasons.append("this GPU has no kernel (irminsul doctor says why)")
    if _prefill_graphs(arguments) == "full":
        reasons.append("full prefill graphs record one batch's rows: use another prefill graph")
    if arguments.speculative_algorithm and (arguments.speculative_eagle_topk or 1) > 1:
        reasons.append("a tree of draft tokens needs a mask: use --speculative-eagle-topk 1")
    return reasons


def _prefill_graphs(arguments: Any) -> str:
    """Return the name of SGLang's way to capture prefill, empty where it has none."""
    config = getattr(arguments, "cuda_graph_config", None)
    backend = getattr(getattr(config, "prefill", None), "backend", None)
    return str(getattr(backend, "value", backend) or "")
