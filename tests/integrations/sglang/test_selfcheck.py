"""The start-up check against rotary modules that are what they seem, and that are not."""

from __future__ import annotations

import pytest
import torch
from irminsul.errors import HostMismatch, Unsupported
from irminsul.integrations.sglang.start import selfcheck
from irminsul.rotation import RopeTable
from torch import Tensor, nn

CPU = torch.device("cpu")


class Rotary(nn.Module):
    """A DeepSeek-style rotary module: interleaved or half-split, cos and sin times mscale."""

    def __init__(
        self,
        *,
        declared_neox: bool = False,
        neox: bool = False,
        mscale: float = 1.0,
        extra: int = 0,
        shift: int = 0,
    ) -> None:
        super().__init__()
        self.is_neox_style = declared_neox
        self._neox = neox
        self._mscale = mscale
        self._shift = shift
        own = self._compute_cos_sin_cache()
        self.cos_sin_cache = torch.cat([own, torch.ones(extra, 64)])

    def _compute_cos_sin_cache(self) -> Tensor:
        frequencies = 10_000.0 ** (-torch.arange(0, 64, 2) / 64)
        angles = torch.arange(2048.0)[:, None] * frequencies
        return torch.cat([angles.cos(), angles.sin()], dim=1) * self._mscale

    def forward(self, positions: Tensor, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self._compute_cos_sin_cache()[positions + self._shift * positions].chunk(2, 1)
        values = key[:, 0].float()
        if self._neox:
            first, second = values[:, :32], values[:, 32:]
            turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=1)
        else:
            first, second = values[:, 0::2], values[:, 1::2]
            turned = torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1)
            turned = turned.flatten(1)
        return query, turned[:, None].to(key.dtype)


class Attention(nn.Module):
    def __init__(self, rotary: nn.Module | None) -> None:
        super().__init__()
        self.kv_lora_rank = 512
        self.rotary_emb = rotary


def model(rotary: nn.Module | None) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), Attention(rotary))


@pytest.mark.parametrize("neox", [False, True])
@pytest.mark.parametrize("mscale", [1.0, 1.2689])
def test_an_honest_module_passes(neox: bool, mscale: float) -> None:
    rotary = Rotary(declared_neox=neox, neox=neox, mscale=mscale)
    table = selfcheck.rope_table(model(rotary), CPU)
    assert table.interleaved == (not neox)
    assert table.max_positions == 2048


def test_rows_that_the_engine_appended_are_left_out() -> None:
    table = selfcheck.rope_table(model(Rotary(mscale=1.1, extra=256)), CPU)
    assert table.max_positions == 2048


def test_a_rounded_table_is_computed_again() -> None:
    rotary = Rotary()
    rotary.cos_sin_cache = rotary.cos_sin_cache.to(torch.bfloat16)
    assert selfcheck.rope_table(model(rotary), CPU).cos_sin.dtype == torch.float32


@pytest.mark.parametrize("lie", [{"declared_neox": True}, {"neox": True}])
def test_a_wrong_pairing_is_refused(lie: dict[str, bool]) -> None:
    with pytest.raises(HostMismatch, match="differ from the model's own"):
        selfcheck.rope_table(model(Rotary(**lie)), CPU)


def test_rows_at_other_positions_are_refused() -> None:
    rotary = Rotary(shift=1)
    table = RopeTable.from_model_cache(rotary.cos_sin_cache[:1024], interleaved=True)
    with pytest.raises(HostMismatch):
        selfcheck.check(rotary, table, CPU)


@pytest.mark.parametrize("rotary", [None, nn.Linear(2, 2)])
def test_a_module_without_a_table_is_refused(rotary: nn.Module | None) -> None:
    with pytest.raises(Unsupported):
        selfcheck.rope_table(model(rotary), CPU)


def test_a_model_without_latent_attention_is_refused() -> None:
    with pytest.raises(Unsupported, match="no MLA attention"):
        selfcheck.rope_table(nn.Linear(2, 2), CPU)
