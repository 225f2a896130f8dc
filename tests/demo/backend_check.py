"""Run under one SGLang version: the demo's attention backend beside the stock torch_native one.

Prints a JSON object with the largest error of each against float64, for prefill rows (several of
one request among them), and for decode.
"""

import json
from types import SimpleNamespace

import torch
from irminsul.demo import cpu_backend
from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

HEADS, WIDTH, VALUE, SCALE = 2, 576, 512, 0.05
LENGTHS = (300, 90)


class Pool:
    """The part of an MLA pool that a backend uses."""

    def __init__(self, rows):
        self.rows = rows

    def set_kv_buffer(self, layer, location, key, value):
        self.rows[location.loc] = key

    def get_key_buffer(self, layer_id):
        return self.rows

    def get_value_buffer(self, layer_id):
        return self.rows[..., :VALUE]


def batch(decode, rows):
    """Rows are (request, prefix, queries)."""
    requests, prefixes, counts = (torch.tensor(column) for column in zip(*rows, strict=True))
    ends = [(r, torch.arange(p, p + n)) for r, p, n in rows]
    return SimpleNamespace(
        forward_mode=SimpleNamespace(is_decode=lambda: decode),
        req_pool_indices=requests,
        seq_lens=prefixes + counts,
        extend_prefix_lens=prefixes,
        extend_seq_lens=counts,
        encoder_lens=None,
        out_cache_loc=torch.cat([SLOTS[r, positions] for r, positions in ends]).long(),
    )


def exact(query, rows, pool):
    """One query at a time in float64."""
    out = []
    for request, prefix, count in rows:
        for position in range(prefix, prefix + count):
            keys = pool[SLOTS[request, : position + 1].long(), 0].double()
            weights = torch.softmax(query[len(out)].double() @ keys.T * SCALE, -1)
            out.append(weights @ keys[:, :VALUE])
    return torch.stack(out)


def errors(decode, rows):
    """The largest error of the demo's backend and of the stock one."""
    tokens = sum(count for _, _, count in rows)
    generator = torch.Generator().manual_seed(tokens)
    rows_before = torch.randn(sum(LENGTHS) + 1, 1, WIDTH, generator=generator).bfloat16()
    query = torch.randn(tokens, HEADS * WIDTH, generator=generator).bfloat16()
    key = torch.randn(tokens, 1, WIDTH, generator=generator).bfloat16()
    layer = SimpleNamespace(
        layer_id=0, qk_head_dim=WIDTH, v_head_dim=VALUE, tp_q_head_num=HEADS, tp_k_head_num=1,
        scaling=SCALE, is_cross_attention=False, attn_type=None, sliding_window_size=None,
    )  # fmt: skip
    found = []
    for create in (ATTENTION_BACKENDS["torch_native"], TorchNativeAttnBackend):
        pool = Pool(rows_before.clone())
        runner = SimpleNamespace(
            device="cpu", use_mla_backend=True, token_to_kv_pool=pool,
            req_to_token_pool=SimpleNamespace(req_to_token=SLOTS),
        )  # fmt: skip
        backend = create(runner)
        forward = backend.forward_decode if decode else backend.forward_extend
        output = forward(query, key, key[..., :VALUE], layer, batch(decode, rows))
        want = exact(query.view(-1, HEADS, WIDTH), rows, pool.rows)
        found.append(float((output.view(tokens, HEADS, VALUE).double() - want).abs().max()))
    return found


SLOTS = torch.zeros(4, 512, dtype=torch.int32)
_order = torch.randperm(sum(LENGTHS), generator=torch.Generator().manual_seed(1)).int() + 1
SLOTS[1, : LENGTHS[0]], SLOTS[3, : LENGTHS[1]] = _order.split(LENGTHS)

cpu_backend.register()
print(
    json.dumps(
        {
            "prefill": errors(False, [(1, 0, 300), (3, 0, 90)]),
            "holes": errors(False, [(1, 32, 2), (1, 70, 100), (1, 290, 10), (3, 89, 1)]),
            "decode": errors(True, [(1, 299, 1), (3, 89, 1)]),
        }
    )
)
