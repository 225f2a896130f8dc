"""Configurations one by one -> the sentence that refuses each, without starting an engine."""

from __future__ import annotations

import json
import os
from array import array
from types import SimpleNamespace
from typing import Any

import torch
from irminsul.errors import HostMismatch, Unsupported
from irminsul.integrations.sglang import compat, plugin
from irminsul.integrations.sglang.start import build, refuse
from irminsul.integrations.sglang.tree import tenancy
from sglang.srt.configs.model_config import AttentionArch
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.sampling.sampling_params import SamplingParams

SCHEDULE = "sglang.srt.managers.schedule_batch.ScheduleBatch.prepare_for_extend"


class Anything(SimpleNamespace):
    """Server arguments with everything off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return None


def context(**changes: Any) -> Any:
    """Return a build context that is not refused, with `changes` to it."""
    width = changes.pop("latent", 512)
    pool = MLATokenToKVPool(64, 1, changes.pop("dtype", torch.bfloat16), width, 64, 2, "cpu", False)
    pool.use_dsa = changes.pop("use_dsa", False)
    pool = changes.pop("pool", pool)
    allocator = TokenToKVPoolAllocator(64, torch.bfloat16, "cpu", pool, False)
    arguments = {"attention_backend": "triton", "tp_size": 1, "pp_size": 1}
    arguments |= {"disaggregation_mode": "null", **changes.pop("arguments", {})}
    given: dict[str, Any] = {
        "server_args": Anything(**arguments),
        "params": SimpleNamespace(
            disable=False,
            attn_tp_cache_group=None,
            token_to_kv_pool_allocator=changes.pop("allocator", allocator),
        ),
        "is_hybrid_swa": False,
        "is_hybrid_ssm": False,
        "is_dsa": False,
        "disable_radix_cache": False,
        "enable_hierarchical_cache": False,
        "model_config": SimpleNamespace(
            attention_arch=changes.pop("architecture", AttentionArch.MLA),
            is_generation=True,
            num_hidden_layers=changes.pop("layers", 2),
        ),
        "tp_worker": SimpleNamespace(
            model_runner=SimpleNamespace(attn_backend=changes.pop("backend", object()))
        ),
    }
    return SimpleNamespace(**{**given, **changes})


class FakePool:
    """A pool that is none."""


class Willing:
    accepts_virtual_rows = True


WORKERS = {"arguments": {"tokenizer_worker_num": 2}}

CASES: dict[str, dict[str, Any]] = {
    "disable_radix_cache": {"disable_radix_cache": True},
    "sliding window": {"is_hybrid_swa": True},
    "recurrent": {"is_hybrid_ssm": True},
    "not mla": {"architecture": AttentionArch.MHA},
    "dsa model": {"is_dsa": True},
    "dsa pool": {"use_dsa": True},
    "fp8 rows": {"dtype": torch.float8_e4m3fn},
    "other width": {"latent": 256},
    "part of the layers": {"layers": 4},
    "other pool": {"pool": FakePool()},
    "other allocator": {"allocator": SimpleNamespace()},
    "unknown backend": {"arguments": {"attention_backend": "aiter"}},
    "mixed flashmla": {"arguments": {"attention_backend": "flashmla", "enable_mixed_chunk": True}},
    "compiled prefill": {
        "arguments": {
            "cuda_graph_config": SimpleNamespace(prefill=SimpleNamespace(backend="tc_piecewise"))
        }
    },
    **{
        f"full prefill, data parallel by {name}": {
            "arguments": {
                "cuda_graph_config": SimpleNamespace(prefill=SimpleNamespace(backend="full")),
                **fields,
            }
        }
        for name, fields in (
            ("flag", {"enable_dp_attention": True, "dp_size": 2}),
            ("groups", {"enable_dp_attention": False, "attn_dp_size": 2}),
        )
    },
    "disaggregation_mode": {"arguments": {"disaggregation_mode": "prefill"}},
    **({"tokenizer workers": WORKERS} if tenancy.joins_salts() else {}),
    **{name: {"arguments": {name: "on"}} for name in refuse._FLAGS},
    **{name: {"arguments": {name: 2}} for name in refuse._SIZES},
}


def reasons() -> dict[str, list[str]]:
    return {name: list(refuse.start_reasons(context(**case))) for name, case in CASES.items()}


def raised(action: Any, *arguments: Any) -> str:
    try:
        action(*arguments)
    except (HostMismatch, Unsupported) as error:
        return f"{type(error).__name__}: {error}"
    return ""


# What a request can ask for that moved rows cannot give -> the reason it is served exactly.
REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "output logprobs": {"return_logprob": True, "logprob_start_len": -1},
    "output logprobs, explicit": {"return_logprob": True, "logprob_start_len": 3},
    "prompt_logprobs": {"return_logprob": True, "logprob_start_len": 0},
    "hidden_states": {"return_hidden_states": True},
    "multimodal": {"multimodal_inputs": SimpleNamespace()},
    "embeddings": {"input_embeds": [[0.0]]},
    "embeddings, some": {"positional_embed_overrides": SimpleNamespace()},
    "routed_experts": {"return_routed_experts": True},
    "token_types": {"token_type_ids": [0, 0, 0]},
    "session": {"session": SimpleNamespace()},
    "scoring": {"multi_item_delimiter_indices": [1]},
}


def requests() -> dict[str, str | None]:
    """Return why each kind of request is served exactly, asked of SGLang's own request class."""
    found = {}
    for name, fields in REQUESTS.items():
        request = Req(name, "", array("q", [5, 6, 7]), SamplingParams(max_new_tokens=1))
        for field, value in fields.items():
            if not hasattr(request, field):
                raise AttributeError(f"a request has no {field}")
            setattr(request, field, value)
        found[name] = refuse.request_reason(request)
    return found


def adapters() -> dict[str, bool]:
    """Return whether an adapter loaded twice under one name has an identity of its own."""
    from sglang.srt.lora.lora_registry import LoRARef

    ids = [LoRARef(lora_name="a", lora_path="/a").lora_id for _ in range(2)]
    return {"reloaded_is_new": ids[0] != ids[1]}


def hooks() -> dict[str, str]:
    """Register, break one hook, rename one attribute: each must be noticed."""
    facts = {"before": raised(build.check_host)}
    plugin.register()
    plugin.register()
    HookRegistry.apply_hooks()
    facts["applied"] = raised(build.check_host)
    facts["hooks"] = str(sum(len(HookRegistry._hooks[target]) for target in plugin.TARGETS))
    HookRegistry._patched.discard(SCHEDULE)
    facts["one missing"] = raised(build.check_host)
    HookRegistry._patched.add(SCHEDULE)
    original = ScheduleBatch.prepare_for_extend
    del ScheduleBatch.prepare_for_extend
    facts["renamed"] = raised(build.check_host)

    def other_parameters(batch: Any) -> None: ...

    ScheduleBatch.prepare_for_extend = other_parameters
    facts["other parameters"] = raised(build.check_host)
    ScheduleBatch.prepare_for_extend = original
    return facts


def stock() -> str:
    """Return the cache that serves when refusing hands over, or the error."""
    from sglang.srt.mem_cache import registry

    os.environ["IRMINSUL_ON_UNSUPPORTED"] = "stock"
    registry.default_radix_cache_factory = lambda ctx: "stock cache"
    return str(build.build_cache(context(is_hybrid_ssm=True)))


def main() -> None:
    facts = {
        "clean": list(refuse.start_reasons(context())),
        "willing": list(
            refuse.start_reasons(context(arguments={"attention_backend": "own"}, backend=Willing()))
        ),
        "reasons": reasons(),
        "several": raised(build.check_context, context(is_hybrid_swa=True, is_dsa=True)),
        "hooks": hooks(),
        "rows": [[row.target, row.resolved, row.detail] for row in compat.rows()],
        "requests": requests(),
        "adapters": adapters(),
        "stock": stock(),
    }
    print("FACTS " + json.dumps(facts))


if __name__ == "__main__":
    main()
