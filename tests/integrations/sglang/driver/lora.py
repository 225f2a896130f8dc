"""Two adapters of one model -> whether each reuses its own rows and computes what it should."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from host import Host, answer
from safetensors.torch import save_file
from text import Writer

RANK = 8
LENGTH = 165  # torch's CPU attention gives the same bits up to 192 keys


def run(host: Host) -> dict[str, Any]:
    for name, seed in (("a", 1), ("b", 2)):
        folder = _write(host, f"{name}{seed}", seed)
        assert host.engine.load_lora_adapter(name, folder).success
    writer = Writer(seed=9)
    facts = {
        "tenants": _tenants(host, writer),
        "delta0": _delta_zero(host, writer),
        "reload": _reload(host, writer),
    }
    host.idle_check()
    return facts


def _tenants(host: Host, writer: Writer) -> dict[str, int]:
    document = writer.text(200)

    def cached(name: str, adapter: str | None) -> int:
        prompt = writer.text(writer.number(33, 90)) + document + writer.text(8)
        return int(answer(host.run(prompt, f"lora-{name}", lora_path=adapter))["cached"])

    return {
        "first": cached("first", "a"),
        "same": cached("same", "a"),
        "other": cached("other", "b"),
        "none": cached("none", None),
        "other_same": cached("other2", "b"),
    }


def _delta_zero(host: Host, writer: Writer) -> dict[str, Any]:
    """Holes of one adapter, beside another adapter in the batch: tokens stay what they were."""
    prompt, other = writer.text(LENGTH), writer.text(100)
    full = answer(host.run(prompt, "lora-full", lora_path="a"))["tokens"]
    alone = answer(host.run(other, "lora-alone", lora_path="b"))["tokens"]
    base = answer(host.run(prompt, "lora-base"))["tokens"]
    holes = answer(host.run(prompt, "holes3-lora", lora_path="a"))
    host.flush()
    host.run(prompt, "lora-again", lora_path="a")
    requests = [
        host.request(prompt, "holes2-lora", lora_path="a"),
        host.request(other, "lora-beside", lora_path="b"),
    ]
    both = [answer(result) for result in host.run_all(requests)]
    return {
        "adapter_matters": full != base,
        "cached": [holes["cached"], both[0]["cached"], both[1]["cached"]],
        "tokens_equal": [
            holes["tokens"] == full,
            both[0]["tokens"] == full,
            both[1]["tokens"] == alone,
        ],
    }


def _reload(host: Host, writer: Writer) -> dict[str, int]:
    """Other weights under the name of an adapter that was unloaded."""
    document = writer.text(200)

    def cached(name: str) -> int:
        prompt = writer.text(writer.number(33, 90)) + document + writer.text(8)
        return int(answer(host.run(prompt, f"reload-{name}", lora_path="a"))["cached"])

    facts = {"first": cached("first"), "before": cached("before")}
    assert host.engine.unload_lora_adapter("a").success
    assert host.engine.load_lora_adapter("a", _write(host, "a3", 3)).success
    facts["after"] = cached("after")
    facts["again"] = cached("again")
    return facts


def _write(host: Host, name: str, seed: int) -> str:
    """Write a random adapter in PEFT's layout and return its folder."""
    folder = Path(host.config["dump"]) / name
    folder.mkdir()
    config = json.loads((Path(host.config["model"]) / "config.json").read_text())
    values = config["num_attention_heads"] * config["v_head_dim"]
    shapes = {
        "self_attn.o_proj": (config["hidden_size"], values),
        "mlp.down_proj": (config["hidden_size"], config["intermediate_size"]),
    }
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for module, (rows, columns) in shapes.items():
            prefix = f"base_model.model.model.layers.{layer}.{module}."
            tensors[prefix + "lora_A.weight"] = torch.randn(RANK, columns, generator=generator) / 16
            tensors[prefix + "lora_B.weight"] = torch.randn(rows, RANK, generator=generator) / 4
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "bias": "none",
        "target_modules": ["o_proj", "down_proj"],
        "base_model_name_or_path": host.config["model"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return str(folder)
