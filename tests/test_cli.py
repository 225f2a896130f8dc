"""The command line as a user runs it: exit status, streams, and no traceback for user errors."""

import json
import os
import subprocess
import sys

import irminsul
import numpy as np
import pytest
from irminsul import cli
from irminsul.errors import EngineFailed, InvalidParams


def run(*arguments, stdin=b"", **environment):
    return subprocess.run(
        [sys.executable, "-m", "irminsul", *arguments],
        input=stdin,
        capture_output=True,
        env={**os.environ, **environment},
        check=False,
    )


def ids(count, seed=1):
    return np.random.default_rng(seed).integers(0, 129_280, count).tolist()


def test_help_names_every_subcommand():
    result = run("--help")
    assert result.returncode == 0
    for name in cli.COMMANDS:
        assert name in result.stdout.decode()


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_subcommand_takes_json_and_has_help(name):
    result = run(name, "--help")
    assert result.returncode == 0
    assert b"--json" in result.stdout


def test_version():
    assert run("--version").stdout.decode().split() == ["irminsul", irminsul.__version__]


@pytest.mark.parametrize("arguments", [[], ["brew"], ["chunk", "--wrong"]])
def test_bad_command_line_is_status_2(arguments):
    result = run(*arguments)
    assert result.returncode == 2
    assert b"Traceback" not in result.stderr


def test_the_command_line_imports_no_engine():
    code = "import sys, irminsul.cli as c; c.build_parser(); print([m for m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    loaded = set(eval(result.stdout))
    assert not loaded & {"torch", "sglang", "transformers", "tokenizers", "rich", "zstandard"}


@pytest.mark.parametrize("form", ["list", "words", "file"])
def test_chunk_prints_what_the_library_returns(form, tmp_path):
    tokens = ids(900)
    expected = irminsul.chunk(tokens)
    text = json.dumps(tokens) if form != "words" else "\n".join(map(str, tokens))
    path = tmp_path / "ids.json"
    path.write_text(text)
    source = [str(path)] if form == "file" else []
    result = run("chunk", "--json", *source, stdin=text.encode())
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer["tokens"] == 900
    assert [c["start"] for c in answer["chunks"]] == expected.bounds[:-1].tolist()
    assert [c["end"] for c in answer["chunks"]] == expected.bounds[1:].tolist()
    assert [int(c["fingerprint"], 16) for c in answer["chunks"]] == expected.fingerprints.tolist()


def test_chunk_table_has_a_line_for_each_chunk():
    tokens = ids(900)
    lines = run("chunk", stdin=json.dumps(tokens).encode()).stdout.decode().splitlines()
    expected = irminsul.chunk(tokens)
    assert len(lines) == 1 + len(expected)
    start, end, length, fingerprint = lines[1].split()
    assert (int(start), int(end), int(length)) == (0, expected.bounds[1], expected.bounds[1])
    assert int(fingerprint, 16) == expected.fingerprints[0]


def test_chunk_takes_sizes():
    tokens = ids(3000)
    result = run("chunk", "--json", "--min", "64", "--avg", "100", "--max", "150", "--secret", "9",
                 stdin=json.dumps(tokens).encode())  # fmt: skip
    params = irminsul.ChunkParams(min=64, avg=100, max=150, secret=9)
    bounds = irminsul.chunk(tokens, params).bounds.tolist()
    assert [c["end"] for c in json.loads(result.stdout)["chunks"]] == bounds[1:]


def test_chunk_of_nothing_is_no_chunk():
    assert json.loads(run("chunk", "--json", stdin=b"").stdout)["chunks"] == []


@pytest.mark.parametrize(
    ("stdin", "message"),
    [
        (b"1 2 x", "token 2 is 'x'"),
        (b"[1, -5]", "token 1 is '-5'"),
        (b"[1, true]", "token 1 is 'True'"),
        (b"[1, 2.0]", "token 1 is '2.0'"),
        (b"4294967296", "token 0 is '4294967296'"),
        (b"9" * 5000, "token 0 is '9999"),
        (b"[1, 2", "begins like a JSON list"),
        (b"[" * 100_000, "begins like a JSON list"),
        (b"\xff\xfe", "cannot read '-'"),
    ],
)
def test_chunk_refuses_what_is_no_list_of_ids(stdin, message):
    result = run("chunk", stdin=stdin)
    assert result.returncode == 2
    assert message in result.stderr.decode()
    assert b"Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/no/such/file"], "cannot read '/no/such/file'"),
        (["--min", "3"], "min is 3"),
        (["--tokenizer", "x"], "--tokenizer is only used with --text"),
        (["--text", "--tokenizer", "/no/such/file"], "no tokenizer at '/no/such/file'"),
    ],
)
def test_chunk_names_the_wrong_argument(arguments, message):
    result = run("chunk", *arguments)
    assert result.returncode == 2
    assert message in result.stderr.decode()


def test_a_reader_that_goes_away_is_no_traceback():
    command = f"{sys.executable} -m irminsul chunk - | head -n 1"
    stdin = json.dumps(ids(400_000)).encode()
    result = subprocess.run(command, input=stdin, shell=True, capture_output=True, check=False)
    assert b"start" in result.stdout
    assert result.stderr == b""


@pytest.mark.parametrize(
    ("error", "status"),
    [(InvalidParams("no"), 2), (EngineFailed("no"), 1), (KeyboardInterrupt(), 1)],
)
def test_status_of_each_kind_of_error(monkeypatch, capsys, error, status):
    class Broken:
        @staticmethod
        def add_arguments(parser):
            pass

        @staticmethod
        def run(arguments):
            raise error

    monkeypatch.setattr(cli, "COMMANDS", {"broken": ("tests", "fail")})
    monkeypatch.setattr(cli.importlib, "import_module", lambda _: Broken)
    assert cli.main(["broken"]) == status
    assert capsys.readouterr().err.startswith("irminsul: ")
