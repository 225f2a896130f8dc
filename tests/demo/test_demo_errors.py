"""Wrong arguments and missing parts end the demo before any engine starts."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("torch")
pytest.importorskip("safetensors")


@pytest.fixture
def demo(tmp_path):
    """Run the demo beside a package called sglang that cannot start."""
    package = tmp_path / "host" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('this engine is broken')")

    def run(*arguments, stdin="", host=True):
        path = {"PYTHONPATH": str(package.parent)} if host else {}
        return subprocess.run(
            [sys.executable, "-m", "irminsul", "demo", *arguments],
            input=stdin,
            capture_output=True,
            env={**os.environ, **path},
            check=False,
            text=True,
        )

    return run


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (["--sessions", "0"], "", "--sessions is 0, it must be at least 1"),
        (["--turns", "-1"], "", "--turns is -1, it must be at least 1"),
        (["--pool-tokens", "0"], "", "--pool-tokens is 0"),
        (["--prompts", "/no/such/file"], "", "cannot read '/no/such/file'"),
        (["--prompts", "-"], "not json\n", "holds no request that can be read"),
        (["--prompts", "-"], '{"token_ids": [129280]}', "has token id 129280"),
        (["--prompts", "-", "--pool-tokens", "2"], '{"token_ids": [1, 2]}', "takes up to 1;"),
        (["--tokenizer", "/no/such/file"], "", "no tokenizer at '/no/such/file'"),
    ],
)
def test_bad_input_is_status_2(demo, arguments, stdin, message):
    result = demo(*arguments, stdin=stdin)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_without_an_engine_it_says_what_to_install(demo, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    result = demo(host=False)
    if "starting SGLang" in result.stderr:
        pytest.skip("SGLang is installed here")
    assert result.returncode == 1
    assert result.stderr.startswith("irminsul: the demo needs sglang: pip install 'irminsul-kv[")


def test_an_engine_that_fails_shows_its_log(demo):
    result = demo("--prompts", "-", stdin=json.dumps({"token_ids": [1, 2, 3]}))
    assert result.returncode == 1
    assert "irminsul: SGLang ended (without irminsul); the end of its log:" in result.stderr
    assert "this engine is broken" in result.stderr
