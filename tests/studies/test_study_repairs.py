"""The dense model over states is the model; a repair computes what it says it does."""

import pytest
import repairs
import scenarios
import tasks
import torch
from dense import Dense
from test_study_consistency import FILLER, tiny


@pytest.fixture(scope="module")
def dense():
    torch.set_num_threads(1)
    return Dense(tiny(4), torch.float32)


@pytest.fixture(scope="module")
def case(dense):
    maker = scenarios.Maker(tokens=300, documents=5, filler=FILLER, reading=True)
    with torch.inference_mode():
        return repairs.Case(dense, maker.trial("reordered", 0))


@torch.inference_mode()
def test_states_are_those_of_the_model(dense):
    tokens = torch.arange(40) * 7 % tasks.VOCABULARY
    last = dense.serve(tokens)[-1]
    plain = dense.model(tokens[None], use_cache=False).logits[0]
    torch.testing.assert_close(dense.logits(last), plain, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_rows_that_are_computed_again_over_true_ones_stay_as_they_are(dense):
    tokens = torch.arange(60) * 11 % tasks.VOCABULARY
    full = dense.serve(tokens)
    some = torch.arange(60) % 3 == 0
    again = dense.serve(tokens, full, [some] * 4)
    for left, right in zip(full, again, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_continuations_do_not_see_each_other(dense):
    tokens = torch.arange(50) * 5 % tasks.VOCABULARY
    asked = [[400, 401, 402], [500], [600, 601]]
    scores, paid = dense.ask(dense.serve(tokens), asked)
    for part, found in zip(asked, scores, strict=True):
        whole = dense.serve(torch.cat([tokens, torch.tensor(part)]))[-1][len(tokens) :]
        torch.testing.assert_close(found, dense.logits(whole), rtol=1e-4, atol=1e-4)
    assert paid.shape == (50,)
    assert 0 < float(paid.min()) <= float(paid.max()) <= 1


@torch.inference_mode()
def test_repairs_compute_their_share(case):
    shares = {name: share for name, _, share in repairs.repairs(case)}
    assert shares["full prefill"] == 1.0
    assert 0 < shares["irminsul"] < 0.5
    reused = 1 - shares["irminsul"]
    for name, most in (("relink 5%", 0.05), ("asked 5%, 1 rounds", 0.05)):
        assert shares["irminsul"] < shares[name] <= shares["irminsul"] + most * reused + 0.01
    gradual = [share for name, share in shares.items() if name.startswith("gradual")]
    assert gradual == sorted(gradual, reverse=True)
    assert min(gradual) > 0.25


@torch.inference_mode()
def test_reuse_leaves_the_first_layer_as_it_is(case):
    """Rows of layer 0 know nothing but their token; those of later layers differ."""
    plain = case.serve(~case.reused)
    assert float(case.deviation(0, plain)[case.reused].max()) < 1e-5
    assert float(case.deviation(2, case.full)[case.reused].max()) > 1e-3
