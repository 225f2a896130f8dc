"""Training in pieces is the same training, and what it exports loads as a DeepSeek-V3 model."""

import argparse
from dataclasses import asdict

import checkpoint
import model as small
import pytest
import tasks
import torch
import train
from forward import Forward


def options(state):
    return argparse.Namespace(
        state=state,
        device="cpu",
        seed=0,
        lr=1e-3,
        hidden=96,
        layers=3,
        heads=2,
        mlp=32,
        max_length=128,
        batch_tokens=1024,
        pin=0,
        save_every=1e9,
        warmup=3,
        total_seconds=1e9,
        measure_every=2,
        lens=0.3,
        lens_until=(0.5, 0.75),
        reading=False,
    )


def steps(trainer, first, count):
    for index in range(first, first + count):
        trainer._step(trainer.source.batch(trainer.stages[0], index))


def test_a_checkpoint_loses_nothing(tmp_path):
    torch.set_num_threads(1)
    whole = train.Trainer(options(tmp_path / "whole"))
    steps(whole, 0, 4)
    first = train.Trainer(options(tmp_path / "pieces"))
    steps(first, 0, 2)
    checkpoint.save(tmp_path / "pieces", first.model, first.optimizer, asdict(first.progress))
    second = train.Trainer(options(tmp_path / "pieces"))
    assert second.progress.step == 2
    steps(second, 2, 2)
    for left, right in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(left, right)
    sizes = [path.stat().st_size for path in (tmp_path / "pieces").iterdir()]
    assert max(sizes) < 16 << 20


def test_the_production_size_fits(tmp_path):
    model = small.build(small.config(tasks.VOCABULARY), seed=0)
    small.save(model, tmp_path)
    assert (tmp_path / "model.safetensors").stat().st_size <= 6_000_000
    loaded = small.load(tmp_path)
    tokens = torch.arange(100, 140)[None]
    with torch.inference_mode():
        for weight in model.parameters():
            weight.copy_(weight.bfloat16())
        exact = model.eval()(tokens).logits
        assert torch.allclose(loaded(tokens).logits, exact, atol=1e-3)
    assert loaded.config.kv_lora_rank + loaded.config.qk_rope_head_dim == 576


def test_the_first_layer_looks_back_and_the_second_looks_up():
    """What training begins from: heads one, two and three tokens back, and an induction head."""
    model = small.build(small.config(tasks.VOCABULARY), seed=0).eval()
    model.config._attn_implementation = "eager"
    text = torch.randperm(500)[:60] + 352
    text[50] = text[20]
    with torch.inference_mode():
        maps = model(text[None], output_attentions=True).attentions
    for head, back in ((0, 1), (1, 2), (2, 3)):
        assert float(torch.diagonal(maps[0][0, head], -back)[5:].mean()) > 0.5
    assert int(maps[1][0, 0, 50].argmax()) == 21


def test_a_model_without_preparation_has_neither():
    model = small.build(small.config(tasks.VOCABULARY), seed=0, plain=True).eval()
    model.config._attn_implementation = "eager"
    with torch.inference_mode():
        maps = model(torch.arange(352, 412)[None], output_attentions=True).attentions
    assert float(torch.diagonal(maps[0][0, 0], -1)[5:].mean()) < 0.2


@pytest.mark.parametrize("heads", [3, 4])
def test_the_training_forward_is_the_model(heads):
    """Scores and gradients agree with transformers' own pass."""
    model = small.build(small.config(tasks.VOCABULARY, hidden=96, layers=3, heads=heads), seed=2)
    tokens = torch.randint(100, 900, (2, 70), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.02 * torch.randn_like(weight)
    exact = model(input_ids=tokens, use_cache=False).logits
    exact.square().mean().backward()
    wanted = [weight.grad.clone() for weight in model.parameters()]
    model.zero_grad()
    forward = Forward(model, torch.float32)
    found = forward.logits(forward(tokens)[-1])
    assert torch.allclose(found, exact, atol=1e-4 * float(exact.detach().abs().max()))
    found.square().mean().backward()
    for weight, gradient in zip(model.parameters(), wanted, strict=True):
        assert torch.allclose(weight.grad, gradient, atol=1e-3 * float(gradient.abs().max()))


def test_packed_weights_are_the_same(tmp_path):
    model = small.build(small.config(tasks.VOCABULARY, hidden=96, layers=2, heads=2, mlp=32), 0)
    small.save(model, tmp_path)
    plain = small.load(tmp_path).state_dict()
    small.pack(tmp_path)
    assert not (tmp_path / "model.safetensors").exists()
    packed = small.load(tmp_path).state_dict()
    assert plain.keys() == packed.keys()
    assert all(torch.equal(plain[name], packed[name]) for name in plain)


def test_training_goes_on_from_weights_alone(tmp_path):
    """Without the optimizer's tensors the weights are taken over and the warm-up begins anew."""
    settings = options(tmp_path)
    first = train.Trainer(settings)
    steps(first, 0, 2)
    first._save()
    for name in ("fp32", "exp_avg", "exp_avg_sq"):
        (tmp_path / f"{name}.st").unlink()
    second = train.Trainer(settings)
    assert second.progress.step == 2
    assert second._rate() < first._rate()
    for left, right in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(left.bfloat16().float(), right)


@pytest.mark.parametrize("reading", [False, True])
def test_early_layers_learn_from_the_lens(tmp_path, reading):
    settings = options(tmp_path)
    settings.reading, settings.pin = reading, 2
    trainer = train.Trainer(settings)
    batch = trainer.source.batch(trainer.stages[0], 4)
    lens = trainer._read if reading else trainer._lens
    lens(trainer.forward(batch.tokens), batch).backward()
    layers = trainer.model.model.layers
    assert float(layers[1].self_attn.q_proj.weight.grad.abs().max()) > 0
    assert layers[2].self_attn.q_proj.weight.grad is None
