"""A version of SGLang and a script -> a process that runs it, and what it found."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from irminsul.demo.model import TinyModel

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
VERSIONS = ("0.5.16", "0.5.23")
HOSTS = Path(os.environ.get("IRMINSUL_TEST_HOSTS", ROOT / ".hosts"))

# name -> version, chunked prefill, page size, overlap, pool, scenarios. Every pair of values of
# version, chunk (off, 64, 128), page (1, 16) and overlap (on, off) occurs in one of the six.
ENGINES: dict[str, dict[str, Any]] = {
    "16-whole": {"version": "0.5.16", "chunk": -1, "page_size": 1, "overlap": True},
    "16-chunk64": {"version": "0.5.16", "chunk": 64, "page_size": 16, "overlap": True},
    "16-chunk128": {"version": "0.5.16", "chunk": 128, "page_size": 1, "overlap": False},
    "23-whole": {"version": "0.5.23", "chunk": -1, "page_size": 16, "overlap": False},
    "23-chunk64": {"version": "0.5.23", "chunk": 64, "page_size": 1, "overlap": False},
    "23-chunk128": {"version": "0.5.23", "chunk": 128, "page_size": 16, "overlap": True},
}
_DETAILS: dict[str, dict[str, Any]] = {
    "whole": {"pool": 8192, "holes": [1, 2, 3, 4, 5, 6], "scenarios": ["shifted", "service"]},
    "chunk64": {"pool": 4096, "holes": [1, 3, 6], "scenarios": []},
    "chunk128": {"pool": 1104, "holes": [2, 5], "scenarios": ["pressure"]},
}


def require(version: str) -> Path:
    """Return the folder of an unpacked SGLang, or skip."""
    folder = HOSTS / version
    if not (folder / "sglang").is_dir():
        pytest.skip(f"sglang {version} is not unpacked in {folder} (make setup)")
    return folder


def run(version: str, script: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess:
    """Run `script` with one SGLang version on its path."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("IRMINSUL_")}
    environment = {**inherited, "PYTHONPATH": str(require(version)), **extra}
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1500,
    )


@functools.cache
def model() -> str:
    """Return the folder of the tiny model that every engine serves."""
    return str(TinyModel().write(Path(tempfile.mkdtemp(prefix="irminsul-test-")) / "model"))


@functools.cache
def facts(name: str) -> dict[str, Any]:
    """Run the scenarios of engine `name` once and return what they found."""
    engine = ENGINES[name]
    details = _DETAILS[name.split("-")[1]]
    folder = Path(tempfile.mkdtemp(prefix="irminsul-test-"))
    (folder / "dump").mkdir()
    config = {
        **engine,
        **details,
        "scenarios": ["delta0", *details["scenarios"], "stale"],
        "model": model(),
        "dump": str(folder / "dump"),
        "facts": str(folder / "facts.json"),
        # Short prompts, so that the CPU's attention is bit-reproducible, want short spans.
        "environment": {"IRMINSUL_MIN_SPAN": "8", "IRMINSUL_SINK_TOKENS": "0"},
        # Admit more than fits, so that decoding runs out of slots.
        "arguments": {"schedule_conservativeness": 0.05}
        if "pressure" in details["scenarios"]
        else {},
    }
    (folder / "config.json").write_text(json.dumps(config))
    done = run(engine["version"], HERE / "driver" / "main.py", str(folder / "config.json"))
    if done.returncode or not (folder / "facts.json").exists():
        pytest.fail(f"engine {name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}")
    found: dict[str, Any] = json.loads((folder / "facts.json").read_text())
    found["log"] = done.stderr
    return found
