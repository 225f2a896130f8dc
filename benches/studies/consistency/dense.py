"""Token ids -> states of the small model, dense, of which some are taken over from elsewhere.

Must not know prompts, questions or the engine. A row that is taken over is its donor's state; so
any rule may say which rows a layer computes, and what a question attends to can be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from forward import Forward, _turn
from torch import Tensor
from torch.nn import functional

States = list[Tensor]
"""What enters each layer, and what leaves the last one, [tokens, hidden]."""


class Dense(Forward):
    """The model over states of which some are taken over."""

    def serve(
        self, tokens: Tensor, old: States | None = None, new: Sequence[Tensor] = ()
    ) -> States:
        """States of a prompt; layer n computes the rows that ``new[n]`` says and keeps `old`'s."""
        stream = functional.embedding(tokens, self.model.model.embed_tokens.weight)
        states, at = [stream], torch.arange(len(tokens), device=tokens.device)
        for index, layer in enumerate(self.model.model.layers):
            keys, values, _ = self.rows(layer, states[-1], at)
            if old is None:
                states.append(self._block(layer, states[-1], at, keys, values)[0])
                continue
            rows = new[index].nonzero()[:, 0]
            made = old[index + 1].clone()
            made[rows] = self._block(layer, states[-1][rows], rows, keys, values)[0]
            states.append(made)
        return states

    def ask(self, states: States, asked: Sequence[Sequence[int]]) -> tuple[list[Tensor], Tensor]:
        """Scores behind each token of each continuation; the most that one pays to each row."""
        device, past = states[0].device, len(states[0])
        number = torch.tensor([i for i, part in enumerate(asked) for _ in part], device=device)
        within = torch.cat([torch.arange(len(part)) for part in asked]).to(device)
        at = past + within
        stream = torch.tensor([t for part in asked for t in part], device=device)
        stream = functional.embedding(stream, self.model.model.embed_tokens.weight)
        own = (number[:, None] == number) & (within[:, None] >= within)
        sees = torch.cat([torch.ones(len(at), past, dtype=torch.bool, device=device), own], dim=1)
        paid = torch.zeros(past, device=device)
        places = torch.cat([torch.arange(past, device=device), at])
        for index, layer in enumerate(self.model.model.layers):
            keys, values, _ = self.rows(layer, torch.cat([states[index], stream]), places)
            stream, weights = self._block(layer, stream, at, keys, values, sees)
            paid = torch.maximum(paid, weights[..., :past].amax((0, 1)))
        scores = self.logits(stream)
        return list(torch.split(scores, [len(part) for part in asked])), paid

    def rows(self, layer: Any, stream: Tensor, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values [tokens, heads, n], and the rows that a cache keeps of them."""
        c, attention = self.config, layer.self_attn
        normed = self._norm(layer.input_layernorm, stream)
        latent, shared = self._linear(attention.kv_a_proj_with_mqa, normed).split(
            [c.kv_lora_rank, c.qk_rope_head_dim], dim=-1
        )
        latent = self._norm(attention.kv_a_layernorm, latent)
        expanded = self._linear(attention.kv_b_proj, latent)
        key, value = expanded.view(len(stream), c.num_attention_heads, -1).split(
            [c.qk_nope_head_dim, c.v_head_dim], dim=-1
        )
        shared = _turn(shared[:, None], self._at(at))
        key = torch.cat([key, shared.expand(-1, c.num_attention_heads, -1)], dim=-1)
        return key, value, torch.cat([latent, shared[:, 0]], dim=-1)

    def _block(
        self,
        layer: Any,
        stream: Tensor,
        at: Tensor,
        keys: Tensor,
        values: Tensor,
        sees: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """One layer for rows at positions `at`; also their attention, [heads, rows, keys]."""
        c = self.config
        query = self._linear(layer.self_attn.q_proj, self._norm(layer.input_layernorm, stream))
        plain, turned = query.view(len(stream), -1, c.qk_head_dim).split(
            [c.qk_nope_head_dim, c.qk_rope_head_dim], dim=-1
        )
        query = torch.cat([plain, _turn(turned, self._at(at))], dim=-1)
        if sees is None:
            sees = torch.arange(len(keys), device=at.device) <= at[:, None]
        scores = torch.einsum("mhd,nhd->hmn", query, keys) * c.qk_head_dim**-0.5
        weights = scores.masked_fill_(~sees, float("-inf")).softmax(-1)
        mixed = torch.einsum("hmn,nhd->mhd", weights, values).flatten(1)
        stream = stream + self._linear(layer.self_attn.o_proj, mixed)
        return self._feed(layer, stream), weights

    def _at(self, at: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self._rope(8192, at.device)
        return cos[at], sin[at]
