"""Deltas and positions -> results/rotation-<device>.json: what moving a bfloat16 key costs.

Usage: python benches/studies/rotation/run.py [--device cuda]
"""

from __future__ import annotations

import argparse
import itertools
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from irminsul.attention import KeySpan, mla_attention, mla_attention_reference, tiles_from_spans
from irminsul.rotation import RopeTable, relocate_rows, rotate
from torch import Tensor
from transformers import DeepseekV2Config
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2RotaryEmbedding

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import results_file

HERE = Path(__file__).parent
POSITIONS = 163_840
DELTAS = (1, 16, 256, 4_096, 65_536, 131_072)
SOURCES = (32, 1_024, 16_384, 98_304)
ROWS = 2_048
HEADS = 16
SCALE = 192**-0.5
PAPER = 4.7e-3


@dataclass(frozen=True)
class Angles:
    """DeepSeek-V2-Lite's rotary frequencies, in both precisions."""

    frequency: Tensor
    table: RopeTable

    @classmethod
    def of_v2_lite(cls, device: torch.device) -> Angles:
        """The published configuration: YaRN, factor 40 over 4,096 positions."""
        rope = {
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": 40.0,
            "original_max_position_embeddings": 4_096,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
        }
        config = DeepseekV2Config(max_position_embeddings=POSITIONS, rope_parameters=rope)
        frequency = DeepseekV2RotaryEmbedding(config).inv_freq.to(device)
        angle = torch.arange(POSITIONS, device=device, dtype=torch.float32)[:, None] * frequency
        return cls(frequency, RopeTable(torch.cat([angle.cos(), angle.sin()], 1), True))

    def exact(self, x: Tensor, positions: Tensor) -> Tensor:
        """Turn float64 ``x`` [n, 64] to ``positions`` [n], with true angles."""
        angle = positions.double()[:, None] * self.frequency.double()
        a, b = x[:, 0::2], x[:, 1::2]
        turned = (a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin())
        return torch.stack(turned, dim=-1).flatten(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(options.device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"{platform.machine()} CPU"
    rows = list(_rows(device))
    head = {
        "machine": f"{name}, torch {torch.__version__}",
        "command": "python benches/studies/rotation/run.py " + " ".join(sys.argv[1:]),
    }
    out = options.out or HERE / "results" / f"rotation-{device.type}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(results_file.text(head, results_file.filled(rows)))
    for row in rows:
        print(f"{row['case']:58} {row['metric']:24} {row['value']:.3g}")


def _rows(device: torch.device) -> Iterator[dict[str, Any]]:
    angles = Angles.of_v2_lite(device)
    for delta, source in itertools.product(DELTAS, SOURCES):
        if source + delta + ROWS >= POSITIONS:
            continue
        case = f"delta {delta}, source {source}"
        for metric, value in _measure(angles, source, delta, device).items():
            yield {
                "bar_id": "quality.rotation",
                "case": case,
                "metric": metric,
                "value": float(f"{value:.4g}"),
                "unit": "relative L2",
                "bar": None if metric == "key_left_unturned" else f"<= {PAPER}",
                "samples": ROWS,
            }


def _measure(angles: Angles, source: int, delta: int, device: torch.device) -> dict[str, float]:
    """Errors of the keys themselves, and of attention over them, at one delta."""
    generator = torch.Generator().manual_seed(delta * 1_000_003 + source)
    plain = torch.randn(ROWS, 64, generator=generator, dtype=torch.float64).to(device)
    latent = torch.randn(ROWS, 512, generator=generator, dtype=torch.float64).to(device)
    latent = latent.bfloat16()
    query = torch.randn(4, HEADS, 576, generator=generator).bfloat16().to(device)
    before = torch.arange(source, source + ROWS, device=device)
    stored = angles.exact(plain, before).bfloat16()
    cold = angles.exact(plain, before + delta)
    moved = rotate(stored, delta, angles.table)
    errors = {
        "key_against_float64_turn": _error(
            moved, angles.exact(stored.double(), 0 * before + delta)
        ),
        "key_against_exact_key": _error(moved, cold),
        "exact_key_rounded": _error(cold.bfloat16(), cold),
        "key_left_unturned": _error(stored, cold),
    }
    return errors | _attention_errors(angles, query, latent, stored, cold, delta)


def _attention_errors(
    angles: Angles, query: Tensor, latent: Tensor, stored: Tensor, cold: Tensor, delta: int
) -> dict[str, float]:
    """Attention over all rows: turned in the load (fused), moved first (unfused), or computed."""
    exact = _attend(query.double(), torch.cat([latent.double(), cold], 1), angles, 0)
    rows = torch.cat([latent, stored], dim=1)  # [n, 576]
    pool = torch.zeros(2 * ROWS, 576, dtype=rows.dtype, device=rows.device)
    pool[:ROWS] = rows
    slots = torch.arange(ROWS, device=rows.device)
    deltas = torch.full_like(slots, delta)
    relocate_rows([pool], slots, slots + ROWS, deltas, angles.table)
    computed = torch.cat([latent, cold.bfloat16()], dim=1)
    return {
        "attention_fused": _error(_attend(query, rows, angles, delta), exact),
        "attention_unfused": _error(_attend(query, pool[ROWS:].contiguous(), angles, 0), exact),
        "attention_computed_keys": _error(_attend(query, computed, angles, 0), exact),
    }


def _attend(query: Tensor, rows: Tensor, angles: Angles, delta: int) -> Tensor:
    """Output of 4 query tokens behind all rows, whose keys are turned by `delta` on the way in."""
    cache = rows.view(-1, 64, 576)
    spans = [[KeySpan(torch.arange(len(rows)), 0, delta)]]
    table = tiles_from_spans(spans).to(rows.device)
    indptr = torch.tensor([0, len(query)], dtype=torch.int32, device=rows.device)
    first = torch.tensor([len(rows)], dtype=torch.int32, device=rows.device)
    common = {"scale": SCALE, "cos_sin": angles.table.cos_sin, "interleaved": True}
    if query.dtype == torch.float64:
        return mla_attention_reference(
            query, cache, table, indptr, first, compute_dtype=torch.float64, **common
        )[0]
    return mla_attention(query, cache, table, indptr, first, max_q_len=len(query), **common)[0]


def _error(value: Tensor, exact: Tensor) -> float:
    return float((value.double() - exact.double()).norm() / exact.double().norm())


if __name__ == "__main__":
    main()
