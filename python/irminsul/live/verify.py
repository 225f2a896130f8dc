"""`irminsul verify`: a live server -> proof that it reuses moved text, and how far answers move.

Must not know how a cache works, nor how the verdict comes about; it reads options and prints.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from irminsul.errors import InvalidParams, ServerFailed
from irminsul.integrations.sglang.start.refuse import RUN_BACKENDS
from irminsul.live.client import Client, ServerInfo
from irminsul.live.compare import Difference
from irminsul.live.evidence import Check, collect, compared, judge
from irminsul.live.probes import Author

__all__ = ["add_arguments", "add_server_arguments", "run", "vocabulary_size"]

_COUNTER = "irminsul:reused_tokens_total"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``irminsul verify``."""
    add_server_arguments(parser)
    parser.add_argument(
        "--documents", type=int, default=8, metavar="N", help="documents to move (%(default)s)"
    )
    parser.add_argument(
        "--words", type=int, default=800, metavar="N", help="words of each (%(default)s)"
    )
    parser.add_argument(
        "--max-tokens", type=int, default=32, metavar="N", help="length of answers (%(default)s)"
    )
    parser.add_argument(
        "--max-kl",
        type=float,
        default=0.5,
        metavar="NATS",
        help="most that a moved document may change the first token's distribution, as a median "
        "(%(default)s)",
    )
    parser.add_argument(
        "--vocab-size",
        type=int,
        metavar="N",
        help="send random token ids below N (default: text; ids where the server has no tokenizer)",
    )
    parser.add_argument("--seed", type=int, default=None, help="of the documents (default: fresh)")


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what it takes to reach a server."""
    parser.add_argument("--base-url", required=True, metavar="URL", help="of the SGLang server")
    parser.add_argument(
        "--api-key", default="", metavar="KEY", help="bearer token, if it wants one"
    )
    parser.add_argument(
        "--timeout", type=float, default=600.0, metavar="S", help="longest silence (%(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Collect, judge and print; 0 when every check passed."""
    for name, least in (("documents", 1), ("words", 1), ("max_tokens", 1), ("vocab_size", 100)):
        value = getattr(arguments, name)
        if value is not None and value < least:
            raise InvalidParams(f"--{name.replace('_', '-')} must be at least {least}, got {value}")
    client = Client(arguments.base_url, api_key=arguments.api_key, timeout_s=arguments.timeout)
    info = client.info()
    if info.cache != "irminsul":
        raise ServerFailed(
            f"{client.base_url} serves with {info.cache or 'its own'} radix cache: start it with "
            "--radix-cache-backend irminsul"
        )
    seed = secrets.randbits(48) if arguments.seed is None else arguments.seed
    vocabulary = None if info.takes_text else vocabulary_size(info)
    author = Author(seed, arguments.vocab_size or vocabulary)
    probes = [author.probe(arguments.words) for _ in range(arguments.documents)]
    before = _reused_counter(client, info)
    evidence = collect(client, probes, arguments.max_tokens, secrets.token_hex(8), _progress)
    checks = [*judge(evidence, arguments.max_kl), *_counter_check(client, info, before)]
    _report(arguments, info, checks, compared(evidence))
    return 0 if all(check.passed for check in checks) else 1


def _reused_counter(client: Client, info: ServerInfo) -> float | None:
    """Return ``irminsul:reused_tokens_total`` over all ranks, or None without /metrics."""
    if not info.metrics:
        return None
    lines = client.metrics().splitlines()
    values = [line.rsplit(" ", 1)[1] for line in lines if line.startswith(_COUNTER)]
    return sum(map(float, values))


def _counter_check(client: Client, info: ServerInfo, before: float | None) -> Iterator[Check]:
    after = _reused_counter(client, info)
    if before is None or after is None:
        return
    detail = f"{_COUNTER} grew by {after - before:.0f}"
    yield Check("metrics", after > before, detail)


def vocabulary_size(info: ServerInfo) -> int:
    """Return how many token ids the model of a server without tokenizer surely knows."""
    config = Path(info.model) / "config.json"
    try:
        return int(json.loads(config.read_text())["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError):
        # Served from elsewhere: every MLA model's vocabulary is larger.
        return 32_000


def _progress(done: int, of: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{done} of {of} documents", end="\n" if done == of else "", file=sys.stderr)


def _report(
    arguments: argparse.Namespace,
    info: ServerInfo,
    checks: list[Check],
    against: dict[str, Difference],
) -> None:
    passed = all(check.passed for check in checks)
    if arguments.json:
        content: dict[str, Any] = {
            "ok": passed,
            "server": asdict(info),
            "checks": [asdict(check) for check in checks],
            "against_cold": {name: asdict(value) for name, value in against.items()},
        }
        print(json.dumps(content, indent=2))
        return
    print(f"sglang {info.version}, {info.attention} attention, {info.ranks} ranks, {info.model}")
    if info.attention not in RUN_BACKENDS:
        print(f"irminsul's own tests have not run {info.attention}: this is its proof here")
    print()
    for check in checks:
        print(f"  {'pass' if check.passed else 'FAIL'}  {check.name:<13} {check.detail}")
    print(f"\n  {'against cold':<13} flips  first at  KL median  KL most  logprob most")
    for name, value in against.items():
        first = "-" if value.first_flip is None else str(value.first_flip)
        print(
            f"  {name:<13} {value.flips:>2}/{value.answers:<2}  {first:>8}  {value.kl_median:>9.2g}"
            f"  {value.kl_most:>7.2g}  {value.logprob_most:>12.2g}"
        )
    print("\n" + (_PASSED if passed else _FAILED))


_PASSED = (
    "verdict: this server reuses moved text, keeps tenants and exact requests apart, and answers\n"
    "as stated above."
)
_FAILED = "verdict: do not rely on reuse on this server; see the lines that say FAIL."
