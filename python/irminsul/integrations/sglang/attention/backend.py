"""``--attention-backend irminsul`` -> SGLang's attention on irminsul's MLA kernel.

Knows SGLang's attention interface and pools; must not know how keys are tiled or computed.

The kernel takes decode and extend alike in absorbed form, so a hole batch of the cache backend is
just rows with prefixes of their own. Decode may be captured into CUDA graphs: the tile table and
the division of work are made on the device, inside the graph. Prefill for which SGLang prefers the
decompressed form, of cold prompts above all, is flashinfer's where that is installed; it takes a
third of the arithmetic there.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from torch import Tensor

from irminsul.attention import mla_attention
from irminsul.attention.reference import HEAD_DIM
from irminsul.errors import Unsupported
from irminsul.integrations.sglang.attention import registration
from irminsul.integrations.sglang.attention.rows import (
    Rows,
    decode_rows,
    extend_rows,
    pages_of,
    refusals,
)
from irminsul.integrations.sglang.compat import resolved
from irminsul.integrations.sglang.share.start import tables_for
from irminsul.native import supports_device


class IrminsulAttentionBackend(AttentionBackend):  # type: ignore[misc]
    """Absorbed MLA attention over the engine's paged pool.

    Parameters
    ----------
    runner : ModelRunner
        SGLang's.

    Raises
    ------
    Unsupported
        The model, its pool or its engine arguments need what the kernel does not do; the text says
        what to change.
    """

    # Rows of one request may stand in one batch: all keys are written before any is read.
    accepts_virtual_rows = True
    # Decode reads lengths on the device only.
    needs_cpu_seq_lens = False

    def __init__(self, runner: Any) -> None:
        super().__init__()
        device = torch.device(runner.device)
        on_gpu = device.type == "cuda"
        has_kernel = on_gpu and supports_device(torch.cuda.current_device())
        arguments = resolved(runner.server_args)
        if reasons := refusals(runner, arguments, on_gpu=on_gpu, has_kernel=has_kernel):
            raise Unsupported(f"--attention-backend irminsul cannot serve: {'; '.join(reasons)}")
        self.req_to_token_pool = runner.req_to_token_pool
        self.token_to_kv_pool = runner.token_to_kv_pool
        self.page_size = int(runner.page_size)
        _order_slot_reads(self.page_size)
        self.draft_tokens = int(arguments.speculative_num_draft_tokens or 0)
        self.loans = tables_for(runner)
        self.rows: Rows | None = None
        self.decompressed = _decompressed(runner) if on_gpu else None
        self._decompressed_planned = False

    def init_forward_metadata_in_graph(self, forward_batch: Any) -> None:
        """Find out which keys every row of the batch sees."""
        self._decompressed_planned = False
        mode = forward_batch.forward_mode
        slots = self.req_to_token_pool.req_to_token
        sequences = forward_batch.req_pool_indices
        if mode.is_idle():
            self.rows = None
        elif mode.is_decode():
            lengths = forward_batch.seq_lens
            self.rows = decode_rows(slots, sequences, lengths, 1, self.page_size, self.loans)
        elif mode.is_target_verify():
            lengths = forward_batch.seq_lens + self.draft_tokens
            tokens = self.draft_tokens
            self.rows = decode_rows(slots, sequences, lengths, tokens, self.page_size, self.loans)
        else:
            counts = forward_batch.extend_seq_lens_cpu
            prefixes = forward_batch.extend_prefix_lens_cpu
            self.rows = extend_rows(
                slots,
                sequences,
                forward_batch.extend_prefix_lens,
                forward_batch.extend_seq_lens,
                self.page_size,
                most_tokens=max(counts),
                most_keys=max(p + n for p, n in zip(prefixes, counts, strict=True)),
                loans=self.loans,
            )

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Allocate nothing: what a graph needs is made inside it."""

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        """Return the length of padding rows: one key, the pool's unused row."""
        return 1

    def init_mha_chunk_metadata(self, forward_batch: Any, *flags: Any, **options: Any) -> None:
        """Plan the prefix of a batch that SGLang chose the decompressed form for."""
        prefill = self._planned(forward_batch)
        prefill.init_mha_chunk_metadata(forward_batch, *flags, **options)

    def forward_extend(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        q_rope: Tensor | None = None,
        k_rope: Tensor | None = None,
        cos_sin_cache: Tensor | None = None,
        is_neox: bool = False,
        llama_4_scaling: Tensor | None = None,
    ) -> Tensor:
        """Write the batch's rows to the pool, then attend; the same for prefill and decode.

        Parameters
        ----------
        q : Tensor, [tokens, heads * 576], or [tokens, heads * 512] beside `q_rope`
            Absorbed queries, already rotated.
        k, v : Tensor, [tokens, 1, 576 or 512], optional
            New rows and their latent part.
        q_rope, k_rope : Tensor, optional
            The rotary parts where SGLang hands them over apart.
        cos_sin_cache : Tensor, [positions, 64], optional
            Angles by which the rotary parts are still to be turned, by each token's position.
        is_neox : bool
            Whether a pair is (i, i + 32), not (2i, 2i + 1).
        llama_4_scaling : Tensor, optional
            None; models that have it hand their queries over whole.

        Returns
        -------
        Tensor, [tokens, heads * 512]
        """
        if layer.logit_cap:
            raise Unsupported("--attention-backend irminsul has no soft cap on scores")
        if layer.head_dim != HEAD_DIM:
            prefill = self._planned(forward_batch)
            out: Tensor = prefill.forward_extend(q, k, v, layer, forward_batch, save_kv_cache)
            return out
        writes = save_kv_cache and k is not None
        slots = forward_batch.out_cache_loc
        if q_rope is None:
            if writes:
                self.token_to_kv_pool.set_kv_buffer(layer, _write_location(slots), k, v)
            q = q.reshape(-1, layer.tp_q_head_num, HEAD_DIM)
        else:
            angles = cos_sin_cache
            turn = None if angles is None else (angles, forward_batch.positions, is_neox)
            q = self._join(q, q_rope, k if writes else None, k_rope, layer, slots, turn)
        return self._attend(q, layer).flatten(1)

    forward_decode = forward_extend

    def _join(
        self,
        q: Tensor,
        q_rope: Tensor,
        k: Tensor | None,
        k_rope: Tensor | None,
        layer: Any,
        slots: Tensor,
        turn: tuple[Tensor, Tensor, bool] | None,
    ) -> Tensor:
        """Put the parts of the queries together, and write those of new rows to the pool."""
        latent, rope = layer.v_head_dim, layer.head_dim - layer.v_head_dim
        q = q.view(-1, layer.tp_q_head_num, latent)
        q_rope = q_rope.view(-1, layer.tp_q_head_num, rope)
        new = None
        if k is not None and k_rope is not None:
            rows = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
            new = (k.view(-1, 1, latent), k_rope.view(-1, 1, rope), rows, slots)
        if q.is_cuda and (turn or new is None or len(slots) == len(new[0]) == len(q)):
            from irminsul.integrations.sglang.attention.kernels import join

            return join(q, q_rope, new, turn)
        if new is not None:
            both = torch.cat(new[:2], dim=-1)
            self.token_to_kv_pool.set_kv_buffer(layer, _write_location(slots), both, new[0])
        return torch.cat([q, q_rope], dim=-1)

    def _planned(self, forward_batch: Any) -> Any:
        """Return flashinfer's prefill, which looks at a batch when its first layer needs it."""
        if self.decompressed is None:
            raise RuntimeError("a decompressed batch without flashinfer's prefill")
        if not self._decompressed_planned:
            self.decompressed.init_forward_metadata(forward_batch)
            self._decompressed_planned = True
        return self.decompressed

    def _attend(self, q: Tensor, layer: Any) -> Tensor:
        rows = self.rows
        if rows is None:
            raise RuntimeError("attention was asked for before init_forward_metadata")
        rope = None if self.loans is None else self.loans.rope
        out, _ = mla_attention(
            q,
            pages_of(self.token_to_kv_pool.get_key_buffer(layer.layer_id)),
            rows.table,
            rows.q_indptr,
            rows.q_pos,
            scale=layer.scaling,
            max_q_len=rows.max_q_len,
            cos_sin=None if rope is None else rope.cos_sin,
            interleaved=rope is None or rope.interleaved,
            plan=rows.plan(q.shape[0], q.shape[1]),
        )
        return out


def _decompressed(runner: Any) -> Any:
    """Return SGLang's flashinfer backend for prefill, or None where it is not installed."""
    if not registration.decompresses():
        return None
    from sglang.srt.layers.attention.flashinfer_mla_backend import FlashInferMLAAttnBackend

    return FlashInferMLAAttnBackend(runner)


def _order_slot_reads(page_size: int) -> None:
    """Let changes of the slot table wait for decode graphs where these read each slot of a page.

    SGLang up to 0.5.17 takes the table to be read when a graph starts. Of a whole page the kernel
    needs one slot, which names equal rows before and after such a change.
    """
    if page_size < registration.PAGE and not hasattr(AttentionBackend, "shared_read_ends"):
        os.environ["SGLANG_FORCE_COARSE_WAR_BARRIER"] = "1"


def _write_location(slots: Tensor) -> Any:
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc

    return KVWriteLoc(slots, None)
