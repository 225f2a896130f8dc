"""Our attention backend and torch_native on one set of SGLang's own pools -> their differences.

Run as a script with one SGLang version on PYTHONPATH; prints JSON. No engine is started.
"""

from __future__ import annotations

import contextlib
import json
import os
from types import SimpleNamespace
from typing import Any

import torch
from irminsul.demo import cpu_host
from irminsul.integrations.sglang.attention import registration

BARRIER = "SGLANG_FORCE_COARSE_WAR_BARRIER"
HEADS, WIDTH, LATENT, PAGE, POOL = 4, 576, 512, 64, 4096


def main() -> None:
    torch.manual_seed(0)
    cpu_host._pin_nothing()
    with one_rank():
        print(json.dumps(compare()))


def one_rank() -> Any:
    """Newer pools ask how many ranks share a sequence, which an engine would have said."""
    from sglang.srt.runtime_context import get_parallel

    try:
        return get_parallel().override(dcp_enabled=False, attn_dcp_size=1)
    except ValueError:
        return contextlib.nullcontext()


def compare() -> dict[str, Any]:
    runner = make_runner()
    registration.register()
    registration.register()
    from sglang.srt import server_args
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    ours = ATTENTION_BACKENDS["irminsul"](runner)
    theirs = TorchNativeAttnBackend(runner)
    choices = server_args.ATTENTION_BACKEND_CHOICES
    return {
        "choices": [name for name in choices if name == "irminsul"],
        "virtual_rows": ours.accepts_virtual_rows,
        "method": method_of(runner),
        "extend": difference(ours, theirs, runner, extend_batch(runner)),
        "decode": difference(ours, theirs, runner, decode_batch(runner)),
        "apart": apart(ours, runner),
        "turns": turns(),
        "pages": pages(),
        "waits": waits(),
    }


def pages() -> dict[str, int]:
    """Ask SGLang for the page size of an engine that was given none, or 16."""
    from sglang.srt.arg_groups.overrides import _page_size_default

    ways = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
    cases = {way: {way: "irminsul", "page_size": None} for way in ways}
    cases |= {"others": {"page_size": None}, "given": {ways[0]: "irminsul", "page_size": 16}}
    views = {
        name: SimpleNamespace(**{**dict.fromkeys(ways), **case}) for name, case in cases.items()
    }
    return {
        name: _page_size_default(view).get("page_size", view.page_size)
        for name, view in views.items()
    }


def waits() -> dict[int, bool]:
    """Ask whether SGLang orders changes of the slot table behind whole forwards, by page size."""
    from irminsul.integrations.sglang.attention import backend

    found = {}
    for page in (64, 16):
        os.environ.pop(BARRIER, None)
        backend._order_slot_reads(page)
        found[page] = os.environ.pop(BARRIER, "0") == "1"
    return found


def turns() -> dict[str, bool]:
    """Ask MLA layers whether they leave the rotary parts of a batch unturned."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.models.deepseek_common.attention_forward_methods import forward_mla

    layers = forward_mla.DeepseekMLAForwardMixin
    layers._fuse_rope_for_trtllm_mla = lambda self, batch: self.rotary_emb == "asks"
    registration._leave_turning_to_backend()
    registration._leave_turning_to_backend()

    def asked(backend: str, mode: str, rotary: Any) -> bool:
        layer = SimpleNamespace(current_attention_backend=backend, rotary_emb=rotary)
        batch = SimpleNamespace(forward_mode=ForwardMode[mode])
        return layers._fuse_rope_for_trtllm_mla(layer, batch)

    return {
        "decode": asked("irminsul", "DECODE", object()),
        "extend": asked("irminsul", "EXTEND", object()),
        "no rotary": asked("irminsul", "DECODE", None),
        "other": asked("triton", "DECODE", object()),
        "other asks": asked("triton", "DECODE", "asks"),
    }


def make_runner() -> Any:
    from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool, ReqToTokenPool

    pool = MLATokenToKVPool(POOL - PAGE, PAGE, torch.float32, LATENT, 64, 2, "cpu", False)
    requests = ReqToTokenPool(8, 512, "cpu", False)
    pages = 1 + torch.randperm(POOL // PAGE - 1)
    for row in range(4):
        own = pages[8 * row : 8 * row + 8] * PAGE
        slots = own[:, None] + torch.arange(PAGE)
        requests.req_to_token[row] = slots.flatten().int()
    arguments = SimpleNamespace(
        speculative_algorithm=None, speculative_eagle_topk=None, speculative_num_draft_tokens=None
    )
    return SimpleNamespace(
        device="cpu",
        page_size=PAGE,
        use_mla_backend=True,
        token_to_kv_pool=pool,
        req_to_token_pool=requests,
        server_args=arguments,
        model_config=SimpleNamespace(hf_config=SimpleNamespace()),
    )


def layer(number: int = 1) -> Any:
    from sglang.srt.layers.radix_attention import AttentionType

    return SimpleNamespace(
        layer_id=number,
        tp_q_head_num=HEADS,
        tp_k_head_num=1,
        tp_v_head_num=1,
        head_dim=WIDTH,
        qk_head_dim=WIDTH,
        v_head_dim=LATENT,
        scaling=0.05,
        logit_cap=0.0,
        is_cross_attention=False,
        attn_type=AttentionType.DECODER,
        sliding_window_size=-1,
    )


def batch(runner: Any, mode: str, rows: list[tuple[int, int, int]]) -> Any:
    """Rows of (request, prefix, new tokens)."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    requests, prefixes, counts = (torch.tensor(column) for column in zip(*rows, strict=True))
    table = runner.req_to_token_pool.req_to_token
    slots = [table[r, p : p + n].long() for r, p, n in rows]
    return SimpleNamespace(
        forward_mode=ForwardMode[mode],
        batch_size=len(rows),
        req_pool_indices=requests,
        seq_lens=prefixes + counts,
        extend_prefix_lens=prefixes,
        extend_seq_lens=counts,
        extend_prefix_lens_cpu=prefixes.tolist(),
        extend_seq_lens_cpu=counts.tolist(),
        encoder_lens=None,
        out_cache_loc=torch.cat(slots),
        tokens=int(counts.sum()),
    )


def extend_batch(runner: Any) -> Any:
    return batch(runner, "EXTEND", [(0, 0, 130), (2, 60, 5), (1, 0, 64), (3, 200, 1)])


def decode_batch(runner: Any) -> Any:
    return batch(runner, "DECODE", [(0, 130, 1), (1, 64, 1), (2, 65, 1)])


def difference(ours: Any, theirs: Any, runner: Any, forward: Any) -> float:
    """Fill the pools with random rows, run both, and compare outputs and what was written."""
    results = []
    q = torch.randn(forward.tokens, HEADS * WIDTH)
    k = torch.randn(forward.tokens, 1, WIDTH)
    buffer = runner.token_to_kv_pool.get_key_buffer(1)
    before = torch.randn_like(buffer)
    for backend in (ours, theirs):
        buffer.copy_(before)
        backend.init_forward_metadata(forward)
        decode = forward.forward_mode.is_decode()
        call = backend.forward_decode if decode else backend.forward_extend
        results.append((call(q, k, k[..., :LATENT], layer(), forward), buffer.clone()))
    (out, rows), (want, want_rows) = results
    assert out.shape == want.shape
    assert torch.equal(rows, want_rows)
    return float((out - want).abs().max())


def apart(ours: Any, runner: Any) -> float:
    """Hand the rotary parts over apart, as SGLang does to backends that it knows."""
    forward = decode_batch(runner)
    q = torch.randn(forward.tokens, HEADS, WIDTH)
    k = torch.randn(forward.tokens, 1, WIDTH)
    ours.init_forward_metadata(forward)
    whole = ours.forward_decode(q.flatten(1), k, k[..., :LATENT], layer(), forward)
    parts = {"q_rope": q[..., LATENT:], "k_rope": k[..., LATENT:]}
    latent = k[..., :LATENT]
    other = ours.forward_decode(
        q[..., :LATENT].contiguous(), latent, latent, layer(), forward, **parts
    )
    return float((whole - other).abs().max())


def method_of(runner: Any) -> str:
    from sglang.srt.models.deepseek_common.attention_backend_handler import (
        AttentionBackendRegistry,
    )

    return str(AttentionBackendRegistry.get_handler("irminsul")(None, None).name)


if __name__ == "__main__":
    main()
