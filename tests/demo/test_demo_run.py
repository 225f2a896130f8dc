"""The whole demo on every SGLang version: short prompts, real engines, figures as JSON."""

import json
import subprocess
import sys

import numpy as np
import pytest
from demo_hosts import each_version, environment

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(900)]

SHARED_TOKENS = 1500


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Three calls whose shared text moves by the length of what stands before it."""
    generator = np.random.default_rng(5)
    shared = generator.integers(1000, 100_000, SHARED_TOKENS).tolist()
    lines, history = [], shared
    for turn, head_tokens in enumerate((40, 75, 52)):
        head = generator.integers(1000, 100_000, head_tokens).tolist()
        history = history + generator.integers(1000, 100_000, 60).tolist()
        lines.append({"session": "a", "turn": turn, "token_ids": head + history})
    lines.append({"session": "b", "turn": 0, "token_ids": [1, 2, 3]})
    path = tmp_path_factory.mktemp("log") / "calls.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\nnot json\n")
    return path


def demo(version, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "irminsul", "demo", *arguments],
        capture_output=True,
        env=environment(version),
        check=False,
        text=True,
    )


@each_version
def test_moved_text_is_reused_and_counted(version, log):
    result = demo(version, "--prompts", str(log), "--json")
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer["machine"]["sglang"] == version
    turns = answer["turns"]
    assert [turn["prompt_tokens"] for turn in turns] == [1600, 1695, 1732]
    for turn in turns:
        assert turn["prompt_tokens"] == (
            turn["prefix_tokens"] + turn["reused_tokens"] + turn["computed_tokens"]
        )
        assert turn["ttft_s"] > 0
        assert turn["plain_ttft_s"] > 0
    first, *later = turns
    # Nothing to reuse yet: both sides compute the same, so the CPU attention is not in question.
    assert first["reused_tokens"] == first["prefix_tokens"] == 0
    assert first["logits_difference"] < 0.01 * first["logits_spread"]
    assert first["same_token"]
    for turn in later:
        assert turn["prefix_tokens"] == 0
        # All of the shared text but its head, which was computed as the sequence's start.
        assert turn["reused_tokens"] > 0.9 * SHARED_TOKENS
        # Reuse approximates: exactly equal logits would mean that nothing was reused.
        assert 0 < turn["logits_difference"] < np.inf
    assert later[1]["reused_tokens"] > later[0]["reused_tokens"]
    summary = answer["summary"]
    assert summary["turns"] == 2
    assert summary["reused_share"] > 0.8
    assert summary["prefix_share"] == 0
    assert "1 line was skipped; the first is line 5" in result.stderr
