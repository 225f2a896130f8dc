"""SGLang's HTTP server with irminsul, on the CPU: what an operator sees from outside."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import servers
from irminsul.cli import main
from irminsul.integrations.sglang import metrics
from irminsul.live.client import Client

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(1800)]

# Version, how the server is started, and whether it has a tokenizer.
STARTS = [("0.5.16", "module", False), ("0.5.23", "serve", True)]


@pytest.fixture(scope="module", params=STARTS, ids=lambda start: "-".join(map(str, start[:2])))
def server(request: pytest.FixtureRequest) -> Iterator[servers.Running]:
    version, launcher, tokenizer = request.param
    with servers.serve(version, launcher, tokenizer=tokenizer, enable_cache_report=True) as running:
        yield running


def document(seed: int, length: int = 300) -> list[int]:
    return [2 + (seed * 7919 + 31 * index * index + 17 * index) % 510 for index in range(length)]


def metric(running: servers.Running) -> dict[str, float]:
    """Return every sample of irminsul's, summed over label values."""
    found: dict[str, float] = {}
    for line in Client(running.url).metrics().splitlines():
        if line.startswith("irminsul:"):
            name = re.split(r"[{ ]", line)[0]
            found[name] = found.get(name, 0.0) + float(line.rsplit(" ", 1)[1])
    return found


def test_each_scheduler_says_once_that_irminsul_is_on(server: servers.Running) -> None:
    banners = [
        line for line in server.log().splitlines() if "irminsul" in line and "is on:" in line
    ]
    assert len(banners) == 1
    assert re.search(
        r"irminsul \S+ is on: sglang 0\.5\.\d+, attention torch_native, 3 layers of "
        r"bfloat16 rows, rope interleaved to 16384 positions, pool of 8192 tokens, "
        r"1 rank, mode reuse$",
        banners[0],
    )


def test_hits_show_in_the_answer_and_in_metrics(server: servers.Running) -> None:
    client = Client(server.url)
    before = metric(server)
    text = document(1)
    client.generate(document(2, 50) + text, max_tokens=2, key="hits")
    moved = client.generate(document(3, 77) + text, max_tokens=2, key="hits")
    after = metric(server)
    assert 250 <= moved.cached_tokens < moved.prompt_tokens
    grown = {name: after[name] - before.get(name, 0.0) for name in after}
    assert grown["irminsul:reused_tokens_total"] == moved.cached_tokens
    assert grown["irminsul:relocated_tokens_total"] == moved.cached_tokens
    assert grown["irminsul:planned_batches_total"] == 1
    assert grown["irminsul:rows_per_forward_count"] == 1
    assert grown["irminsul:relocate_seconds_count"] == 1
    assert grown["irminsul:lookup_seconds_count"] >= 1
    assert grown["irminsul:plan_seconds_count"] >= 2
    assert grown["irminsul:recorded_tokens_total"] >= 300


def test_every_metric_is_there_under_its_name(server: servers.Running) -> None:
    Client(server.url).generate(document(4), max_tokens=1, reuse=False)  # one fallback: exact
    seen = metric(server)
    missing = [name for name in metrics._HELP if f"irminsul:{name}_total" not in seen]
    missing += [name for name in metrics._OBSERVED if f"irminsul:{name}_count" not in seen]
    missing += [name for name in metrics._GAUGES if f"irminsul:{name}" not in seen]
    # Tiers are not in use here.
    assert [name for name in missing if not name.startswith("tier")] == []
    assert seen["irminsul:reuse_active"] == 1
    assert seen["irminsul:registry_capacity_tokens"] == 8193


def test_openai_usage_counts_reused_tokens(server: servers.Running) -> None:
    if not Client(server.url).info().takes_text:
        pytest.skip("OpenAI endpoints need a tokenizer, which this server was started without")
    text = " ".join(f"item {n} costs {n * n % 97};" for n in range(25))
    usage = [_complete(server, f"{header}: {text}") for header in ("first", "another one")]
    assert usage[0]["prompt_tokens_details"]["cached_tokens"] < 32
    cached = usage[1]["prompt_tokens_details"]["cached_tokens"]
    assert len(text) - 40 <= cached < usage[1]["prompt_tokens"]


def _complete(server: servers.Running, prompt: str) -> dict[str, Any]:
    body = {"model": "default", "prompt": prompt, "max_tokens": 2, "temperature": 0}
    request = urllib.request.Request(
        server.url + "/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        usage: dict[str, Any] = json.loads(response.read())["usage"]
    return usage


def test_verify_passes(server: servers.Running, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--documents", "2", "--words", "500", "--max-tokens", "8", "--vocab-size", "512"]
    status = main(["verify", "--json", "--base-url", server.url, *options])
    report = json.loads(capsys.readouterr().out)
    assert status == 0, report
    assert [check["name"] for check in report["checks"] if not check["passed"]] == []
    assert "metrics" in {check["name"] for check in report["checks"]}


def test_bench_finds_more_than_the_prefix_cache(
    server: servers.Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = [
        {"session": session, "token_ids": document(100 * turn + seed, 40 + turn) + document(seed)}
        for turn in range(3)
        for seed, session in ((11, "a"), (12, "b"))
    ]
    prompts = tmp_path / "calls.jsonl"
    prompts.write_text("\n".join(map(json.dumps, calls)))
    options = ["--sessions", "2", "--max-tokens", "2"]
    main(["bench", "--json", "--base-url", server.url, "--prompts", str(prompts), *options])
    report = json.loads(capsys.readouterr().out)
    assert report["failures"] == []
    sides = report["sides"]
    assert sides["irminsul"]["calls"] == sides["prefix cache"]["calls"] == 6
    assert sides["irminsul"]["cached_share"] > 0.5
    assert sides["prefix cache"]["cached_share"] < 0.1
    assert sides["irminsul"]["ttft_p50_s"] > 0


def test_flushing_over_http_forgets(server: servers.Running) -> None:
    client = Client(server.url)
    text = document(8)
    client.generate(document(9, 50) + text, max_tokens=1, key="flush")
    client.flush()
    assert client.generate(document(10, 60) + text, max_tokens=1, key="flush").cached_tokens == 0


def test_nothing_failed(server: servers.Running) -> None:
    lines = Client(server.url).metrics().splitlines()
    reasons = set(re.findall(r'irminsul:fallback_total\{.*reason="(\w+)"', "\n".join(lines)))
    assert reasons <= {"exact"}
    told = [line for line in server.log().splitlines() if "irminsul: " in line]
    assert [line for line in told if "prompt tokens reused" not in line] == []


def test_a_refused_engine_serves_stock_caching_with_a_warning_where_asked() -> None:
    stock = {"IRMINSUL_ON_UNSUPPORTED": "stock"}
    with servers.serve("0.5.23", environment=stock, disable_radix_cache=True) as running:
        reply = Client(running.url).generate(document(1), max_tokens=2)
        assert reply.completion_tokens == 2
        warning = "irminsul is off and SGLang's own cache serves: irminsul cannot serve"
        assert warning in running.log()
