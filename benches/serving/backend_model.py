"""A folder -> a random MLA checkpoint whose answers hang on what attention reads.

With SGLang's dummy weights, or weights of unit variance, thousands of keys weigh nearly the same,
and answers would hardly change if attention read the wrong ones. Queries several times as long make
few keys count, so a wrong, missing or misplaced key changes what is said.

    python benches/serving/backend_model.py FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from irminsul.demo.model import TinyModel


@dataclass(frozen=True)
class PeakedModel(TinyModel):
    """A `TinyModel` with DeepSeek-V2-Lite's heads, vocabulary and positions.

    Parameters
    ----------
    query_gain
        How many times longer than of unit variance queries are: the standard deviation of scores.
    """

    vocab_size: int = 129_280
    layers: int = 4
    hidden_size: int = 512
    intermediate_size: int = 1024
    heads: int = 16
    nope_head_dim: int = 128
    value_head_dim: int = 128
    context_length: int = 163_840
    rope_factor: int = 40
    query_gain: float = 4.0

    def _weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in super()._weights():
            yield name, weight * self.query_gain if ".q_proj." in name else weight


if __name__ == "__main__":
    PeakedModel().write(sys.argv[1])
