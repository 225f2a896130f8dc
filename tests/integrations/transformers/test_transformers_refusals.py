"""What the engine cannot serve rightly it refuses at once, with the reason."""

import pytest
import torch
import transformers
from irminsul.errors import InvalidParams, InvalidTokens, Unsupported
from irminsul.integrations.transformers import PICEngine, Sampling
from random_models import POSITIONS, make, random_tokens

DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "factor": 4.0,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": POSITIONS // 4,
}


class Frozen(dict):
    """A dict that `functools.cache` can look up."""

    def __hash__(self):
        return hash(repr(self))


@pytest.mark.parametrize("rope", [DYNAMIC, LONGROPE], ids=["dynamic", "longrope"])
def test_rotary_types_without_one_rotation(rope):
    model = make("llama", rope_parameters=Frozen(rope))
    with pytest.raises(Unsupported, match=rope["rope_type"]):
        PICEngine(model)


def test_latent_rows_of_another_width():
    with pytest.raises(Unsupported, match="kv_lora_rank 256"):
        PICEngine(make("deepseek_v3", kv_lora_rank=256))


def test_sliding_windows():
    with pytest.raises(Unsupported, match="window"):
        PICEngine(make("mistral", sliding_window=128))
    with pytest.raises(Unsupported, match="window"):
        PICEngine(make("qwen2", use_sliding_window=True, sliding_window=64, max_window_layers=1))


def test_other_architectures():
    config = transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=50)
    with pytest.raises(Unsupported, match="gpt2"):
        PICEngine(transformers.GPT2LMHeadModel(config).eval())


def test_quantised_weights():
    model = make("deepseek_v2", q_lora_rank=32)
    model.model.layers[0].self_attn.kv_b_proj.to(torch.float64)
    with pytest.raises(Unsupported, match="kv_b_proj"):
        PICEngine(model)


def test_a_model_on_no_device():
    config = transformers.Qwen2Config(**make("qwen2").config.to_diff_dict())
    with torch.device("meta"):
        model = transformers.Qwen2ForCausalLM(config)
    with pytest.raises(Unsupported, match="one device"):
        PICEngine(model.eval())


def test_a_dtype_without_rows():
    model = make("llama", attention_dropout=0.5).double()
    with pytest.raises(Unsupported, match="float64"):
        PICEngine(model)


def test_training_mode():
    model = make("llama", attention_dropout=0.25)
    model.train()
    with pytest.raises(InvalidParams, match="eval"):
        PICEngine(model)


@pytest.mark.parametrize("name", ["capacity_tokens", "chunk_tokens"])
def test_sizes(name):
    with pytest.raises(InvalidParams, match=f"{name} is 0"):
        PICEngine(make("llama"), **{name: 0})


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "empty"),
        ([1, 300], "token id 300"),
        ([-1], "token id -1"),
        ([[1, 2]], "flat"),
        ([0.5], "integers"),
    ],
)
def test_prompts(prompt, message):
    with pytest.raises(InvalidTokens, match=message):
        PICEngine(make("llama")).generate([prompt])


def test_prompts_beyond_the_positions():
    with pytest.raises(InvalidParams, match="2048 positions"):
        PICEngine(make("llama")).generate([random_tokens(POSITIONS, 0)], max_new_tokens=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens is -1"),
        ({"logits": "some"}, "logits is 'some'"),
        ({"reuse": "all"}, "reuse is 'all'"),
        ({"tenant": ["a", "b"]}, "tenant has 2 entries for 1 prompts"),
        ({"logits_from": []}, "logits_from has 0 entries for 1 prompts"),
    ],
)
def test_options(options, message):
    with pytest.raises(InvalidParams, match=message):
        PICEngine(make("llama")).generate([[1]], **options)


@pytest.mark.parametrize(
    "values", [{"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.5}]
)
def test_sampling_values(values):
    with pytest.raises(InvalidParams, match=next(iter(values))):
        Sampling(**values)


def test_rows_of_an_unknown_sequence():
    subject = PICEngine(make("llama"))
    with pytest.raises(InvalidParams, match="sequence 5"):
        subject.read_rows(5, 0)
    subject.generate([[1, 2, 3]])
    with pytest.raises(InvalidParams, match="layer 3"):
        subject.read_rows(subject.kept()[0], 3)
