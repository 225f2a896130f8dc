"""`irminsul analyze` as a user runs it: tables, JSON, a page, figures, and clear errors."""

import gzip
import json
import shutil
import subprocess

import pytest
from irminsul.cli import main

TEXT = " ".join(
    f"The {i}th rule says that {i * 37 % 101} comes before {i * 53 % 97}." for i in range(90)
)


@pytest.fixture(autouse=True)
def _tokenizer_loaded_once(encoder, monkeypatch):
    monkeypatch.setattr("irminsul.tokenizer.load_tokenizer", lambda source=None: encoder)


def call(session, turn, header, extra=()):
    messages = [
        {"role": "system", "content": f"time {header}\n{TEXT}"},
        {"role": "user", "content": "<b>Where</b> do I start?"},
        *extra,
    ]
    return json.dumps({"session": session, "turn": turn, "messages": messages})


@pytest.fixture
def log(tmp_path):
    reply = [{"role": "assistant", "content": "At 1."}, {"role": "user", "content": "And then?"}]
    lines = [
        call("a", 0, "10:31:07 for ann@example.org"),
        "{ not json",
        call("a", 1, "10:31:42 for ann@example.org", reply),
        call("b", 0, "11:05:13 for bob@example.org"),
    ]
    path = tmp_path / "calls <1>.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


def run(*arguments):
    return main(["analyze", *map(str, arguments)])


def test_json(log, capsys):
    assert run(log, "--json", "--capacity", 3000) == 0
    report = json.loads(capsys.readouterr().out)
    [file] = report["files"]
    total = file["total"]
    assert report["total"] == total
    assert total["calls"] == 3
    parts = (total["prefix_tokens"], total["shifted_tokens"], total["computed_tokens"])
    assert sum(parts) == total["prompt_tokens"]
    assert total["prefix_percent"] < 5
    assert 60 < total["irminsul_percent"] <= total["upper_bound_percent"]
    assert total["irminsul_percent_at_capacity"] > total["prefix_percent_at_capacity"]
    assert total["saved_seconds"] > 0
    assert [row["turn"] for row in file["turns"]] == [0, 1]
    assert [row["session"] for row in file["sessions"]] == ["a", "b"]
    assert file["malformed_lines"] == 1
    assert file["first_malformed"][0]["line"] == 2
    [cause] = file["causes"]
    assert (cause["cause"], cause["count"]) == ("changing header", 1)
    assert "31:07" in cause["before"]
    assert "31:42" in cause["after"]


@pytest.mark.parametrize(
    ("text", "said"), [("", "no request"), ("not json\n{}\n", r"2 lines are unreadable; line 1: ")]
)
def test_a_log_without_requests_is_an_error(tmp_path, capsys, text, said):
    path = tmp_path / "empty.jsonl"
    path.write_text(text)
    assert run(path, "--json") == 2
    output = capsys.readouterr()
    assert not output.out
    assert "empty.jsonl holds no request with tokens" in output.err
    assert said in output.err


def test_table(log, capsys):
    assert run(log, "--tflops", 100, "--model", "deepseek-v2-lite") == 0
    out = capsys.readouterr().out
    for part in ("calls <1>", "changing header", "line 2", "deepseek-v2-lite", "100 TFLOP/s"):
        assert part in out
    assert "capped" not in out


def test_secrets_are_masked_by_default(log, capsys):
    run(log, "--json")
    assert "ann@" not in capsys.readouterr().out
    run(log, "--json", "--show-secrets")
    assert "ann@" in capsys.readouterr().out


def test_tokens_are_kept(log, tmp_path, capsys):
    reports = []
    for _ in range(2):
        assert run(log, "--json", "--cache", tmp_path / "tokens") == 0
        reports.append(json.loads(capsys.readouterr().out))
    assert reports[0] == reports[1]
    assert len(list((tmp_path / "tokens").iterdir())) == 1


@pytest.fixture
def page(log, tmp_path, capsys):
    path = tmp_path / "report.html"
    assert run(log, "--html", path, "--png", tmp_path / "png", "--capacity", 3000) == 0
    capsys.readouterr()
    return path


def test_page_is_self_contained_and_escaped(page, tmp_path):
    text = page.read_text()
    assert "<title>Prompt reuse</title>" in text
    assert text.count("<svg") == 3
    assert "calls &lt;1&gt;.jsonl.gz" in text
    assert "<1>" not in text
    for outside in ('src="http', 'href="http', "@import", "<script"):
        assert outside not in text
    pictures = sorted(path.name for path in (tmp_path / "png").iterdir())
    assert pictures == ["causes-1.png", "reuse.png", "turns-1.png"]
    assert all((tmp_path / "png" / name).read_bytes()[:4] == b"\x89PNG" for name in pictures)


BROWSER = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_page_opens_in_a_browser(page, tmp_path):
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}/u",
    ]
    shown = subprocess.run(
        [*command, "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "Why prefixes break" in shown.stdout
    assert shown.stdout.count("<svg") == 3


def test_template(log, tmp_path, capsys):
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}")
    assert run(log, "--json", "--template", template) == 0
    assert json.loads(capsys.readouterr().out)["total"]["irminsul_percent"] > 60
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": template.read_text(), "bos_token": "<s>"}))
    assert run(log, "--json", "--template", config) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--capacity", "0"], "--capacity"),
        (["--tflops", "0"], "--tflops"),
        (["--model", "gpt"], "deepseek-v3"),
        (["--template", "missing.jinja"], "missing.jinja"),
        (["--html", "/nowhere/at/all.html"], "cannot write"),
    ],
)
def test_bad_arguments(log, arguments, message, capsys):
    assert run(log, *arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("source", ["{% if %}", "{{ raise_exception('no system role') }}"])
def test_bad_templates(log, tmp_path, source, capsys):
    template = tmp_path / "template.jinja"
    template.write_text(source)
    assert run(log, "--template", template) == 2
    assert "template.jinja" in capsys.readouterr().err


def test_missing_file(tmp_path, capsys):
    assert run(tmp_path / "missing.jsonl") == 2
    assert "missing.jsonl" in capsys.readouterr().err
