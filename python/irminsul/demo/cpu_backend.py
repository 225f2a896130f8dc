"""`cpu_attention` -> an attention backend of SGLang, in place of the one named torch_native.

Must not know irminsul's plans: it sees rows of new queries, as any backend does.

It takes torch_native's name instead of one of its own: SGLang asks for that name wherever it would
otherwise launch a Triton kernel (slot tables, allocation).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from irminsul.demo.cpu_attention import Row, attend

if TYPE_CHECKING:
    import torch

__all__ = ["register", "rows_of"]

NAME = "torch_native"


def register() -> None:
    """Make SGLang build this backend for ``attention_backend="torch_native"``."""
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    register_attention_backend(NAME)(_create)


def rows_of(batch: Any) -> list[Row]:
    """Return the rows of new queries in an SGLang ``ForwardBatch``."""
    sequences = batch.req_pool_indices.tolist()
    if batch.forward_mode.is_decode():
        ends = batch.seq_lens.tolist()
        return [Row(s, end - 1, 1) for s, end in zip(sequences, ends, strict=True)]
    prefixes, counts = batch.extend_prefix_lens.tolist(), batch.extend_seq_lens.tolist()
    return [Row(*row) for row in zip(sequences, prefixes, counts, strict=True)]


def _create(runner: Any) -> Any:
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    class CpuMlaBackend(TorchNativeAttnBackend):  # type: ignore[misc]
        """Attention of an MLA model in absorbed form that computes new queries only."""

        # A request may have several rows: keys are gathered by slot, after the batch's are written.
        accepts_virtual_rows = True

        def forward_extend(
            self,
            q: torch.Tensor,  # [tokens, heads * 576]
            k: torch.Tensor,  # [tokens, 1, 576]
            v: torch.Tensor,  # [tokens, 1, 512]
            layer: Any,
            forward_batch: Any,
            save_kv_cache: bool = True,
        ) -> torch.Tensor:
            """Write the new rows to the pool, then attend; the same for prefill and decode."""
            pool = self.token_to_kv_pool
            if save_kv_cache and k is not None:
                pool.set_kv_buffer(layer, _write_location(forward_batch.out_cache_loc), k, v)
            output = attend(
                q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim),
                pool.get_key_buffer(layer.layer_id),
                self.req_to_token_pool.req_to_token,
                rows_of(forward_batch),
                layer.scaling,
                layer.v_head_dim,
            )
            return output.flatten(1)

        forward_decode = forward_extend

    if not runner.use_mla_backend:
        raise ValueError("the demo's CPU attention serves MLA models only")
    return CpuMlaBackend(runner)


def _write_location(slots: torch.Tensor) -> Any:
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc

    return KVWriteLoc(slots, None)
