"""`irminsul bench`: what is sent, in which order, and what is made of the answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_server import FakeServer
from irminsul.cli import main
from irminsul.errors import InvalidTrace
from irminsul.live.bench import read_sessions
from irminsul.live.client import Reply
from irminsul.live.replay import Replay
from irminsul.live.summary import summarise


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Three sessions of three calls; each call's text moves behind a growing header."""
    lines = []
    for turn in range(3):
        for session in ("a", "b", "c"):
            base = 1000 * ord(session)
            ids = [*range(turn * 7, turn * 14 + 20), *range(base, base + 300)]
            lines.append(json.dumps({"session": session, "token_ids": ids}))
    file = tmp_path / "calls.jsonl"
    file.write_text("\n".join(lines))
    return file


def bench(
    server: FakeServer, prompts: Path, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[int, Any]:
    with server.running() as url:
        command = ["bench", "--json", "--base-url", url, "--prompts", str(prompts), *options]
        status = main(command)
    captured = capsys.readouterr()
    return status, json.loads(captured.out) if captured.out else captured.err


def test_both_sides_send_every_call(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = FakeServer()
    status, report = bench(server, prompts, capsys, "--repeats", "2", "--max-tokens", "4")
    assert status == 0
    assert {name: side["calls"] for name, side in report["sides"].items()} == {
        "irminsul": 18,
        "prefix cache": 18,
    }
    assert report["sides"]["irminsul"]["cached_share"] > 0.5
    assert report["sides"]["prefix cache"]["cached_share"] < 0.1
    assert set(report["ratios"]) == {"ttft_mean", "ttft_p50", "calls_per_s"}
    assert len({request["extra_key"] for request in server.requests}) == 4
    assert server.flushes == 0


def test_who_goes_first_alternates(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = FakeServer()
    bench(server, prompts, capsys, "--repeats", "2")
    sides = [r["sampling_params"]["custom_params"]["irminsul"] for r in server.requests]
    assert sides == [True] * 9 + [False] * 18 + [True] * 9


def test_calls_of_a_session_keep_their_order(
    prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = FakeServer()
    bench(server, prompts, capsys, "--side", "reuse", "--sessions", "3")
    by_session: dict[int, list[int]] = {}
    for request in server.requests:
        by_session.setdefault(request["input_ids"][-1], []).append(len(request["input_ids"]))
    assert list(by_session.values()) == [[320, 327, 334]] * 3


def test_one_session_at_a_time_is_sequential(
    prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = FakeServer()
    bench(server, prompts, capsys, "--side", "prefix", "--sessions", "1", "--limit", "2")
    ends = [request["input_ids"][-1] for request in server.requests]
    assert ends == [97_299] * 3 + [98_299] * 3


def test_a_server_of_its_own_as_baseline(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stock = FakeServer("no_reuse", radix_cache_backend=None)
    with stock.running() as url:
        status, report = bench(FakeServer(), prompts, capsys, "--baseline-url", url, "--flush")
    assert status == 0
    assert stock.flushes == 1
    assert len(stock.requests) == 9
    assert all("custom_params" not in r["sampling_params"] for r in stock.requests)
    assert report["sides"]["prefix cache"]["calls"] == 9


def test_failed_calls_are_counted_and_told(
    prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, report = bench(FakeServer("fails"), prompts, capsys)
    assert status == 1
    assert len(report["failures"]) == 9
    assert "input is too long" in report["failures"][0]


@pytest.mark.parametrize("fault", ["breaks_off", "silent", "late_error"])
def test_streams_that_go_wrong(
    fault: str, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, error = bench(FakeServer(fault), prompts, capsys)
    assert status == 1
    assert "no call was answered; the first failure: /generate" in error


def test_the_printed_table(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer("fails").running() as url:
        main(["bench", "--base-url", url, "--prompts", str(prompts), "--sessions", "2"])
    printed = capsys.readouterr().out
    assert "irminsul" in printed
    assert "prefix cache" in printed
    assert "x the calls per second" in printed
    assert "9 calls failed, for example: /generate answered 400" in printed


def test_a_server_without_irminsul_is_named(
    prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, error = bench(FakeServer(radix_cache_backend=None), prompts, capsys)
    assert status == 1
    assert "--baseline-url" in error


def test_text_goes_to_a_server_with_a_tokenizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "calls.jsonl"
    call = {"session": "a", "messages": [{"role": "user", "content": "Where is the key?"}]}
    file.write_text(json.dumps(call) + "\n" + json.dumps({"session": "a", "prompt": "Plain."}))
    server = FakeServer(skip_tokenizer_init=False)
    assert bench(server, file, capsys, "--side", "reuse")[0] == 0
    assert "Where is the key?" in server.requests[0]["text"]
    assert server.requests[1]["text"] == "Plain."


@pytest.mark.parametrize("option", ["--sessions", "--max-tokens", "--repeats", "--limit"])
def test_counts_must_be_positive(
    option: str, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(FakeServer(), prompts, capsys, option, "0")[0] == 2


def test_a_trace_without_calls(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("{}\n")
    with pytest.raises(InvalidTrace, match="holds no call"):
        read_sessions(str(tmp_path / "empty.jsonl"), lambda call: "x")


def test_summary_figures() -> None:
    def reply(first_s: float) -> Reply:
        return Reply(1000, 250, 10, (), (), {}, first_s, 2 * first_s)

    replies = [reply(0.01 * step) for step in range(1, 101)]
    half = Replay(replies[:50], ["one failed"], 2.0)
    summary = summarise([half, Replay(replies[50:], [], 3.0)])
    assert summary is not None
    assert (summary.calls, summary.failures) == (100, 1)
    assert summary.ttft_mean_s == pytest.approx(0.505)
    assert summary.ttft_p50_s == pytest.approx(0.505)
    assert summary.ttft_p95_s == pytest.approx(0.9505)
    assert summary.ttft_p99_s == pytest.approx(0.9901)
    assert summary.latency_p50_s == pytest.approx(1.01)
    assert summary.calls_per_s == pytest.approx(20.0)
    assert summary.prompt_tokens_per_s == pytest.approx(20_000.0)
    assert summary.completion_tokens_per_s == pytest.approx(200.0)
    assert summary.cached_share == pytest.approx(0.25)
    assert summarise([Replay()]) is None
