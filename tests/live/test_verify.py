"""`irminsul verify` against a server that behaves, and against each way not to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_server import FakeServer
from irminsul.cli import main
from irminsul.live.client import ServerInfo
from irminsul.live.verify import vocabulary_size

QUICK = ("--documents", "3", "--words", "200", "--max-tokens", "8", "--seed", "5")


def verify(
    server: FakeServer, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[int, Any]:
    with server.running() as url:
        status = main(["verify", "--json", "--base-url", url, *QUICK, *options])
    captured = capsys.readouterr()
    return status, json.loads(captured.out) if captured.out else captured.err


def failed(report: Any) -> set[str]:
    return {check["name"] for check in report["checks"] if not check["passed"]}


def test_a_server_that_behaves_passes(capsys: pytest.CaptureFixture[str]) -> None:
    status, report = verify(FakeServer(), capsys)
    assert status == 0
    assert report["ok"]
    assert failed(report) == set()
    names = [check["name"] for check in report["checks"]]
    assert names[:3] == ["reuse", "exact prefix", "tenants"]
    assert names[-1] == "metrics"
    assert {value["flips"] for value in report["against_cold"].values()} == {0}


def test_noise_of_the_engine_itself_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    status, report = verify(FakeServer("noisy"), capsys)
    assert status == 0, report
    assert report["against_cold"]["cold again"]["logprob_most"] > 0


@pytest.mark.parametrize(
    ("fault", "checks"),
    [
        ("no_reuse", {"reuse", "metrics"}),
        ("no_prefix", {"exact prefix"}),
        ("leaks", {"tenants"}),
        ("ignores_opt_out", {"opt-out"}),
        ("invents", {"fresh text", "tenants"}),
        ("counts_all", {"bounds", "tenants", "opt-out", "fresh text"}),
        ("garbage", {"fidelity"}),
        ("taints", {"exactness"}),
        ("counter_stuck", {"metrics"}),
    ],
)
def test_each_fault_is_found(
    fault: str, checks: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    status, report = verify(FakeServer(fault), capsys)
    assert status == 1
    assert not report["ok"]
    assert checks <= failed(report)
    # A fault that touches everything may fail more; the others must not.
    if fault not in ("leaks", "ignores_opt_out"):
        assert failed(report) == checks


def test_without_metrics_the_counter_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    status, report = verify(FakeServer("counter_stuck", enable_metrics=False), capsys)
    assert status == 0
    assert "metrics" not in {check["name"] for check in report["checks"]}


def test_text_goes_to_a_server_with_a_tokenizer(capsys: pytest.CaptureFixture[str]) -> None:
    server = FakeServer(skip_tokenizer_init=False)
    status, report = verify(server, capsys)
    assert status == 0, report
    assert all("text" in request for request in server.requests)


def test_every_request_has_a_key_of_this_run(capsys: pytest.CaptureFixture[str]) -> None:
    server = FakeServer()
    for _ in range(2):
        status, report = verify(server, capsys)
        assert status == 0, report  # the second run finds nothing of the first
    assert all(request["extra_key"].startswith("verify-") for request in server.requests)
    assert server.flushes == 0


def test_the_printed_report(capsys: pytest.CaptureFixture[str]) -> None:
    for faults, verdict in (((), "verdict: this server reuses"), (("leaks",), "verdict: do not")):
        with FakeServer(*faults).running() as url:
            main(["verify", "--base-url", url, *QUICK])
        printed = capsys.readouterr().out
        assert verdict in printed
        assert "sglang 0.5.23, triton attention, 1 ranks, tiny" in printed
        assert ("FAIL  tenants" in printed) == bool(faults)


@pytest.mark.parametrize(("backend", "told"), [("flashinfer", False), ("flashmla", True)])
def test_backends_that_nobody_has_run_are_announced(
    backend: str, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeServer(attention_backend=backend).running() as url:
        main(["verify", "--base-url", url, *QUICK])
    note = f"irminsul's own tests have not run {backend}"
    assert (note in capsys.readouterr().out) == told


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({"radix_cache_backend": None}, "serves with its own radix cache: start it with"),
        ({"radix_cache_backend": "lmcache"}, "serves with lmcache radix cache"),
        ({"version": None, "model_path": None}, "None"),
    ],
)
def test_a_server_without_irminsul(
    info: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server = FakeServer(**info)
    if info.get("version", "") is None:
        del server.info["version"]
        message = "does not answer like an SGLang server"
    status, error = verify(server, capsys)
    assert status == 1
    assert message in error


def test_a_server_that_fails_requests(capsys: pytest.CaptureFixture[str]) -> None:
    status, error = verify(FakeServer("fails"), capsys)
    assert status == 1
    assert "/generate answered 400" in error
    assert "input is too long" in error


def test_token_ids_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    server = FakeServer(skip_tokenizer_init=False)
    status, report = verify(server, capsys, "--vocab-size", "512")
    assert status == 0, report
    assert max(max(request["input_ids"]) for request in server.requests) < 512


@pytest.mark.parametrize("option", ["--documents", "--words", "--max-tokens", "--vocab-size"])
def test_counts_must_be_positive(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--base-url", "http://127.0.0.1:9", option, "0"]) == 2
    assert f"{option} must be at least 1" in capsys.readouterr().err


def test_the_vocabulary_comes_from_a_local_model(tmp_path: Path) -> None:
    def info(model: str) -> ServerInfo:
        return ServerInfo("0.5.23", model, "irminsul", "triton", 1, False, False)

    (tmp_path / "config.json").write_text('{"vocab_size": 512}')
    assert vocabulary_size(info(str(tmp_path))) == 512
    assert vocabulary_size(info("deepseek-ai/DeepSeek-V2-Lite")) == 32_000
