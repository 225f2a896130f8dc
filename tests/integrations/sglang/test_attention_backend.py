"""SGLang engines on the CPU with our attention backend, against SGLang's own torch_native.

In fp32, where both backends give the same tokens; the CPU runs the kernel's specification.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import hosts
import pytest

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("version", hosts.ENDS)
def test_it_equals_torch_native_on_sglang_s_own_pools(version: str) -> None:
    done = hosts.run(version, hosts.HERE / "driver" / "attention_class.py")
    assert done.returncode == 0, done.stderr[-4000:]
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts["choices"] == ["irminsul"]
    assert facts["virtual_rows"]
    assert facts["method"] == "MLA"
    assert facts["extend"] < 1e-4
    assert facts["decode"] < 1e-4
    assert facts["apart"] == 0
    assert facts["pages"].pop("others") == 1
    assert facts["pages"].pop("given") == 16
    assert set(facts["pages"].values()) == {64}
    assert facts["waits"] == {"64": False, "16": version == "0.5.16"}
    assert [case for case, leaves in facts["turns"].items() if leaves] == ["decode", "other asks"]


# name -> version, page size.
CASES = {"16-page64": ("0.5.16", 64), "23-page1": ("0.5.23", 1)}


def found(name: str, backend: str) -> dict[str, Any]:
    return hosts.served(f"{name} {backend}", *_engine(name, backend))


@functools.cache
def _engine(name: str, backend: str) -> tuple[hosts.Done, dict[str, Any]]:
    version, page = CASES[name]
    engine = {
        "version": version,
        "page_size": page,
        "chunk": 128 if page == 1 else -1,
        "overlap": True,
        "pool": 4096 - page,
        "holes": [1, 3],
        "scenarios": ["attention", "delta0"] if backend == "irminsul" else ["attention"],
        "environment": {
            "IRMINSUL_MIN_SPAN": "8",
            "IRMINSUL_SINK_TOKENS": "0",
            # Other names than torch_native allocate by Triton kernels.
            "TRITON_INTERPRET": "1",
        },
        "arguments": {"attention_backend": backend, "dtype": "float32"},
    }
    return hosts._drive(engine)


@pytest.mark.parametrize("name", CASES)
def test_tokens_equal_those_of_torch_native(name: str) -> None:
    ours = found(name, "irminsul")["attention"]
    theirs = found(name, "torch_native")["attention"]
    assert ours == theirs
    assert ours["alone"] == ours["together"]
    assert min(ours["cached"]) >= 64


@pytest.mark.parametrize("name", CASES)
def test_hole_batches_are_its_rows(name: str) -> None:
    cases = found(name, "irminsul")["delta0"]["cases"]
    assert [case["holes"] for case in cases if not case["tokens_equal"]] == []
    assert all(case["reused"] > 0 for case in cases)


def test_a_pool_that_is_not_whole_pages_is_refused() -> None:
    done = hosts.start("0.5.23", {"attention_backend": "irminsul"})
    assert done.returncode
    assert "no multiple of 64" in done.stderr
    assert "--max-total-tokens" in done.stderr
