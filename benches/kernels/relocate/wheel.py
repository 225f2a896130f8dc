"""An installed wheel -> whether its CUDA library loads and moves rows as the reference does, here.

Run once per machine and torch version with the same wheel file; each run adds its row to the file.

    python benches/kernels/relocate/wheel.py --out benches/kernels/relocate/results/wheel.json
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import sys
from pathlib import Path

import torch
from irminsul import native
from irminsul.rotation import RopeTable, relocate_rows

SLOTS, ROWS, LAYERS = 4_096, 1_000, 3


def moved(device: str) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    angles = torch.outer(torch.arange(2_048.0), 10_000.0 ** (-torch.arange(32) / 32))
    table = RopeTable(torch.cat([angles.cos(), angles.sin()], 1).to(device), interleaved=True)
    layers = [torch.randn(SLOTS, 1, 576, generator=generator).bfloat16() for _ in range(LAYERS)]
    layers = [layer.to(device) for layer in layers]
    slots = torch.randperm(SLOTS, generator=generator)[: 2 * ROWS].to(device)
    deltas = torch.randint(-2_000, 2_000, (ROWS,), generator=generator).to(device)
    relocate_rows(layers, slots[:ROWS], slots[ROWS:], deltas, table)
    return [layer.cpu() for layer in layers]


def wrong(ours: torch.Tensor, reference: torch.Tensor) -> int:
    """Count c_KV numbers that differ at all, and k_r numbers off by more than a bf16 rounding."""
    latent = int((ours[..., :512] != reference[..., :512]).sum())
    near = torch.isclose(ours[..., 512:], reference[..., 512:], rtol=2**-7, atol=2**-8)
    return latent + int((~near).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    gpu = torch.cuda.is_available()
    where = torch.cuda.get_device_name() if gpu else "no GPU"
    reason = native.unavailable_reason()
    differing = -1
    if reason is None:
        pairs = zip(moved("cuda" if gpu else "cpu"), moved("cpu"), strict=True)
        differing = sum(wrong(a, b) for a, b in pairs)
    row = {
        "bar_id": "relocate.3",
        "case": f"{where}, torch {torch.__version__}, Python {platform.python_version()}",
        "metric": "numbers of moved rows that are wrong, with the loaded library",
        "value": differing,
        "unit": "",
        "rival": None,
        "rival_value": None,
        "bar": "== 0",
        "samples": [differing],
        "library": native.build_info() if reason is None else reason,
    }
    result = {"machine": "see each row", "command": shlex.join(["python", *sys.argv]), "rows": []}
    if arguments.out.exists():
        result = json.loads(arguments.out.read_text())
    result["rows"] = [old for old in result["rows"] if old["case"] != row["case"]] + [row]
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(row["case"], differing, row["library"])


if __name__ == "__main__":
    main()
