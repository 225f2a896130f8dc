"""A version of SGLang and a script -> a process that runs it, and what it found."""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from irminsul.demo.model import TinyModel

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
# The ends of the supported range run everything. Versions between them at which SGLang changed what
# irminsul touches run a part, and everything where IRMINSUL_TEST_GRID=1.
ENDS = ("0.5.16", "0.5.23")
VERSIONS = ("0.5.16", "0.5.20", "0.5.22", "0.5.23")
EVERYTHING = bool(os.environ.get("IRMINSUL_TEST_GRID"))
HOSTS = Path(os.environ.get("IRMINSUL_TEST_HOSTS", ROOT / ".hosts"))

# name -> version, chunked prefill, page size, overlap. Every pair of values of version (of the
# ends), chunk (off, 64, 128), page (1, 16) and overlap (on, off) occurs in one of the first six.
ENGINES: dict[str, dict[str, Any]] = {
    "16-whole": {"version": "0.5.16", "chunk": -1, "page_size": 1, "overlap": True},
    "16-chunk64": {"version": "0.5.16", "chunk": 64, "page_size": 16, "overlap": True},
    "16-chunk128": {"version": "0.5.16", "chunk": 128, "page_size": 1, "overlap": False},
    "23-whole": {"version": "0.5.23", "chunk": -1, "page_size": 16, "overlap": False},
    "23-chunk64": {"version": "0.5.23", "chunk": 64, "page_size": 1, "overlap": False},
    "23-chunk128": {"version": "0.5.23", "chunk": 128, "page_size": 16, "overlap": True},
    "20-chunk128": {"version": "0.5.20", "chunk": 128, "page_size": 1, "overlap": True},
    "22-whole": {"version": "0.5.22", "chunk": -1, "page_size": 1, "overlap": True},
}
# Engines that get new weights when everything else is done.
UPDATED = ("16-whole", "23-whole")
# Engines that serve adapters.
ADAPTERS: dict[str, dict[str, Any]] = {
    "16-lora": {"version": "0.5.16", "chunk": -1, "page_size": 1, "overlap": True},
    "23-lora": {"version": "0.5.23", "chunk": -1, "page_size": 1, "overlap": True},
}
# Engines of two ranks: tensor parallelism, and attention data parallelism.
RANKS: dict[str, dict[str, Any]] = {
    "16-tp2": {"version": "0.5.16", "chunk": -1, "page_size": 16, "overlap": True},
    "23-tp2": {"version": "0.5.23", "chunk": 64, "page_size": 1, "overlap": True},
    "23-dp2": {"version": "0.5.23", "chunk": 128, "page_size": 1, "overlap": True},
}
if EVERYTHING:
    ENGINES |= {
        "20-whole": {"version": "0.5.20", "chunk": -1, "page_size": 16, "overlap": False},
        "20-chunk64": {"version": "0.5.20", "chunk": 64, "page_size": 1, "overlap": True},
        "22-chunk64": {"version": "0.5.22", "chunk": 64, "page_size": 16, "overlap": False},
        "22-chunk128": {"version": "0.5.22", "chunk": 128, "page_size": 16, "overlap": True},
    }
# The rest of the grid, for tests that are asked to run all of it.
GRID: dict[str, dict[str, Any]] = {
    f"{version[-2:]}-grid-chunk{chunk}-page{page}-{'overlap' if overlap else 'serial'}": engine
    for version, chunk, page, overlap in itertools.product(
        VERSIONS, (-1, 64, 128), (1, 16), (True, False)
    )
    if (engine := {"version": version, "chunk": chunk, "page_size": page, "overlap": overlap})
    not in ENGINES.values()
}
_DETAILS: dict[str, dict[str, Any]] = {
    "grid": {"pool": 4096, "holes": [1, 2, 3, 4, 5, 6], "scenarios": []},
    "whole": {
        "pool": 8192,
        "holes": [1, 2, 3, 4, 5, 6],
        "scenarios": ["shifted", "exact", "service"],
    },
    "chunk64": {"pool": 4096, "holes": [1, 3, 6], "scenarios": ["exact", "budget", "chain"]},
    "tp2": {
        "pool": 4096,
        "holes": [1, 3],
        "scenarios": ["parallel"],
        "arguments": {"tp_size": 2, "log_level": "info"},
    },
    "lora": {
        "pool": 4096,
        "holes": [],
        "only": ["lora"],
        "arguments": {
            "enable_lora": True,
            "lora_backend": "torch_native",
            "max_lora_rank": 8,
            "max_loras_per_batch": 3,
            "lora_target_modules": ["o_proj", "down_proj"],
        },
    },
    "dp2": {
        "pool": 4096,
        "holes": [],
        "only": ["shared"],
        "arguments": {"tp_size": 2, "dp_size": 2, "enable_dp_attention": True},
    },
    "chunk128": {"pool": 1104, "holes": [2, 5], "scenarios": ["pressure"]},
}


Done = subprocess.CompletedProcess[str]


def require(version: str) -> Path:
    """Return the folder of an unpacked SGLang, or skip."""
    folder = HOSTS / version
    if not (folder / "sglang").is_dir():
        pytest.skip(f"sglang {version} is not unpacked in {folder} (make setup)")
    return folder


def run(version: str, script: Path, *arguments: str) -> Done:
    """Run `script` with one SGLang version on its path."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("IRMINSUL_")}
    # One thread: the model is tiny, and two that wait for each other on busy cores are slower.
    environment = {
        **inherited,
        "PYTHONPATH": str(require(version)),
        "OMP_NUM_THREADS": "1",
        "SGLANG_DISABLED_MODEL_ARCHS": _other_models(version),
    }
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1500,
    )


@functools.cache
def _other_models(version: str) -> str:
    """Return the model files that no test serves: every process of an engine would import them."""
    files = (require(version) / "sglang" / "srt" / "models").glob("*.py")
    needed = ("deepseek_v2", "registry", "__init__")
    return ",".join(sorted(file.stem for file in files if file.stem not in needed))


@functools.cache
def model() -> str:
    """Return the folder of the tiny model that every engine serves."""
    folder = tempfile.mkdtemp(prefix="irminsul-test-model-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return str(TinyModel().write(folder))


def start(version: str, arguments: dict[str, Any]) -> Done:
    """Start one engine with `arguments`, run nothing, and return how it ended."""
    engine = {"version": version, "chunk": -1, "page_size": 1, "overlap": True, "pool": 2048}
    return _drive({**engine, "scenarios": [], "environment": {}, "arguments": arguments})[0]


def facts(name: str) -> dict[str, Any]:
    """Run the scenarios of engine `name` once and return what they found."""
    done, found = _facts(name)
    return {**served(name, done, found), "log": done.stderr}


def served(name: str, done: Done, found: dict[str, Any]) -> dict[str, Any]:
    """Return what an engine found; fails where it did not come to its end."""
    if done.returncode or "counts" not in found:
        pytest.fail(f"engine {name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}")
    return found


@functools.cache
def _facts(name: str) -> tuple[Done, dict[str, Any]]:
    engine = (ENGINES | GRID | RANKS | ADAPTERS)[name]
    details = _DETAILS[name.split("-")[1]]
    tiny = details["pool"] < 2048
    scenarios = details.get("only") or ["delta0", *details["scenarios"], "stale"]
    return _drive(
        {
            **engine,
            **details,
            "scenarios": [*scenarios, "weights"] if name in UPDATED else scenarios,
            # Short prompts, so that the CPU's attention is bit-reproducible, want short spans.
            "environment": {
                "IRMINSUL_MIN_SPAN": "8",
                "IRMINSUL_SINK_TOKENS": "0",
                # Besides what the pool's size forces: newer engines admit too carefully for it.
                "SGLANG_TEST_RETRACT": "1" if tiny else "0",
                "SGLANG_TEST_RETRACT_INTERVAL": "40",
            },
            "arguments": {
                # Admit more than fits, so that decoding runs out of slots.
                "schedule_conservativeness": 0.05 if tiny else 1.0,
                # Prefill and decode in one batch, where both happen at once.
                "enable_mixed_chunk": tiny and engine["overlap"],
                **details.get("arguments", {}),
            },
        }
    )


def _drive(config: dict[str, Any]) -> tuple[Done, dict[str, Any]]:
    # The rows that an engine dumps are large: they live as long as the engine.
    with tempfile.TemporaryDirectory(prefix="irminsul-test-") as folder:
        dump, file, given = (Path(folder) / name for name in ("dump", "facts", "config"))
        dump.mkdir()
        places = {"model": model(), "dump": str(dump), "facts": str(file)}
        given.write_text(json.dumps({**config, **places}))
        done = run(config["version"], HERE / "driver" / "main.py", str(given))
        return done, json.loads(file.read_text()) if file.exists() else {}
