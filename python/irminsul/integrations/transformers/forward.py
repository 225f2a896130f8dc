"""A model, its rows and a batch -> hidden states, with attention over the paged rows.

Must not know plans or sampling. The model is as it was whenever no forward pass is running.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from irminsul._rotation_reference import rotate_rows
from irminsul.attention import mla_attention
from irminsul.attention.reference import LATENT_DIM, ROPE_DIM
from irminsul.integrations.transformers.batch import ForwardBatch
from irminsul.integrations.transformers.family import Family
from irminsul.integrations.transformers.pool import LatentRows, WholeKeyRows

__all__ = ["Runner"]

_NAME = "irminsul_paged"


class Runner:
    """Runs a model over paged rows.

    Parameters
    ----------
    model : transformers.PreTrainedModel
    family : Family
        Of that model.
    rows : LatentRows or WholeKeyRows
    """

    def __init__(self, model: Any, family: Family, rows: LatentRows | WholeKeyRows) -> None:
        self._model = model
        self._family = family
        self._rows = rows

    @torch.inference_mode()
    def __call__(self, batch: ForwardBatch) -> Tensor:
        """Compute the batch's rows in every layer; return hidden states, [total, hidden_size]."""
        with self._own_attention(batch):
            output = self._model.model(
                input_ids=batch.tokens[None],
                position_ids=batch.positions[None],
                use_cache=False,
            )
        hidden: Tensor = output.last_hidden_state[0]
        return hidden

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the next token in fp32, [n, vocabulary]."""
        scores: Tensor = self._model.get_output_embeddings()(hidden)
        return scores.float()

    @contextmanager
    def _own_attention(self, batch: ForwardBatch) -> Iterator[None]:
        """Latent models expand c_KV before their attention function, so their forward is ours."""
        config = self._model.config
        before = config._attn_implementation
        token = _running.set((self, batch))
        config._attn_implementation = _NAME
        try:
            for index, module in enumerate(self._family.attentions if self._family.latent else []):
                module.__dict__["forward"] = _bound(self, module, index, batch)
            yield
        finally:
            for module in self._family.attentions:
                module.__dict__.pop("forward", None)
            config._attn_implementation = before
            _running.reset(token)

    def latent_attention(
        self, module: Any, layer: int, batch: ForwardBatch, hidden: Tensor
    ) -> Tensor:
        """Absorbed MLA: project, rotate, write the new rows, attend to all rows of the sequence.

        Hidden states come and go as [total, hidden_size].
        """
        assert isinstance(self._rows, LatentRows)
        query = _queries(module, hidden)  # [total, heads, nope + 64]
        nope, rotary = torch.split(query, [module.qk_nope_head_dim, ROPE_DIM], dim=-1)
        compressed = module.kv_a_proj_with_mqa(hidden)
        c_kv, k_r = compressed.split([LATENT_DIM, ROPE_DIM], dim=-1)
        k_r = self._rotated(k_r, batch.positions)
        row = torch.cat([module.kv_a_layernorm(c_kv), k_r], dim=-1)  # [total, 576]
        self._rows.write(layer, batch.slots, row)
        up = module.kv_b_proj.weight.view(
            self._family.num_heads, -1, LATENT_DIM
        )  # [heads, nope + value, 512]
        key_up, value_up = up.split([module.qk_nope_head_dim, module.v_head_dim], dim=1)
        absorbed = torch.einsum("thd,hdc->thc", nope, key_up)
        rotary = self._rotated(rotary, batch.positions[:, None].expand(rotary.shape[:-1]))
        out, _lse = mla_attention(
            torch.cat([absorbed, rotary], dim=-1),
            self._rows.layers[layer],
            batch.table,
            batch.q_indptr,
            batch.q_pos,
            scale=module.scaling,
            max_q_len=batch.max_q_len,
            plan=batch.plan,
        )
        values = torch.einsum("thc,hvc->thv", out, value_up).flatten(1)
        out_states: Tensor = module.o_proj(values)
        return out_states

    def _rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        """Put RoPE on fresh queries or keys; positions were checked when the prompt came."""
        turned = rotate_rows(x, positions, self._family.angles, self._family.interleaved)
        return turned if self._family.mscale == 1.0 else turned * self._family.mscale

    def whole_key_attention(
        self,
        layer: int,
        batch: ForwardBatch,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float | None,
    ) -> Tensor:
        """GQA or MHA: write the rotated keys and the values, attend stretch by stretch.

        All come as [1, heads, total, head_dim]; the result is [1, total, heads, head_dim].
        """
        assert isinstance(self._rows, WholeKeyRows)
        keys, values = self._rows.keys[layer], self._rows.values[layer]
        keys[batch.slots] = key[0].transpose(0, 1)
        values[batch.slots] = value[0].transpose(0, 1)
        outputs = []
        for index in range(len(batch.stretches)):
            first, last = batch.bounds[index], batch.bounds[index + 1]
            slots, mask = _visible(batch, index)
            outputs.append(
                scaled_dot_product_attention(
                    query[:, :, first:last],
                    keys[slots].transpose(0, 1)[None],
                    values[slots].transpose(0, 1)[None],
                    attn_mask=mask,
                    scale=scale,
                    enable_gqa=query.shape[1] != key.shape[1],
                )
            )
        return torch.cat(outputs, dim=2).transpose(1, 2)


_running: ContextVar[tuple[Runner, ForwardBatch]] = ContextVar("irminsul_running")


def _bound(
    runner: Runner, module: nn.Module, layer: int, batch: ForwardBatch
) -> Callable[..., tuple[Tensor, None]]:
    def forward(hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
        return runner.latent_attention(module, layer, batch, hidden_states[0])[None], None

    return forward


def _paged(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers' own modules ask for it."""
    runner, batch = _running.get()
    layer = int(module.layer_idx)
    return runner.whole_key_attention(layer, batch, query, key, value, scaling), None


# Under a name of its own, for which transformers makes no mask: causality is in the positions.
AttentionInterface.register(_NAME, _paged)


def _queries(module: Any, hidden: Tensor) -> Tensor:
    """Project to the queries of all heads before RoPE, [total, heads, nope + 64]."""
    if module.q_lora_rank is None:
        flat = module.q_proj(hidden)
    else:
        flat = module.q_b_proj(module.q_a_layernorm(module.q_a_proj(hidden)))
    queries: Tensor = flat.view(len(hidden), -1, module.qk_nope_head_dim + module.qk_rope_head_dim)
    return queries


def _visible(batch: ForwardBatch, index: int) -> tuple[Tensor, Tensor]:
    """Slots of the keys that a stretch may see, and which of them each of its tokens sees."""
    stretch = batch.stretches[index]
    device = batch.slots.device
    slots = stretch.slots[: stretch.end].to(device)
    position = torch.arange(stretch.end, device=device)
    mask = position[None, :] <= position[stretch.start :, None]
    return slots, mask
