"""`irminsul bench`: recorded traffic and a live server -> times and hits, with and without reuse.

Must not know how calls are sent or timed; it reads options and prompts, and prints.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from irminsul.errors import InvalidParams, InvalidTrace, ServerFailed
from irminsul.live.client import Client, Prompt, ServerInfo
from irminsul.live.replay import Replay, Side, replay
from irminsul.live.summary import Summary, summarise
from irminsul.live.verify import add_server_arguments

if TYPE_CHECKING:
    from irminsul.traces.reader import Call

__all__ = ["add_arguments", "read_sessions", "run"]

REUSE, PREFIX = "irminsul", "prefix cache"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``irminsul bench``."""
    add_server_arguments(parser)
    parser.add_argument(
        "--prompts",
        required=True,
        metavar="FILE",
        help="requests as JSON lines, as for `irminsul analyze`; '-' reads standard input",
    )
    parser.add_argument(
        "--baseline-url",
        metavar="URL",
        help="a server without irminsul to compare with (default: exact service on the same "
        "server, which reuses exact prefixes only)",
    )
    _add_counts(parser)
    parser.add_argument(
        "--side",
        choices=("both", "reuse", "prefix"),
        default="both",
        help="run one side only (%(default)s)",
    )
    parser.add_argument(
        "--flush",
        action="store_true",
        help="empty the server's caches before every replay; not where others use the server",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="send token ids made by this tokenizer.json (default: text, or DeepSeek's ids where "
        "the server has no tokenizer)",
    )


def _add_counts(parser: argparse.ArgumentParser) -> None:
    counts = {
        "--sessions": ("sessions that run at once", 8),
        "--max-tokens": ("length of every answer in tokens", 32),
        "--repeats": ("replays of each side, in turn", 1),
    }
    for name, (text, default) in counts.items():
        parser.add_argument(
            name, type=int, default=default, metavar="N", help=f"{text} (%(default)s)"
        )
    parser.add_argument("--limit", type=int, metavar="N", help="replay the first N sessions only")


def run(arguments: argparse.Namespace) -> int:
    """Replay and print; 1 when a call failed."""
    for name in ("sessions", "max_tokens", "repeats", "limit"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise InvalidParams(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    client = _client(arguments.base_url, arguments)
    info = client.info()
    sides = _sides(arguments, client, info)
    sessions = read_sessions(arguments.prompts, _encoder(arguments, info), arguments.limit)
    replays = _replay_all(arguments, sides, sessions)
    summaries = {name: summarise(of_side) for name, of_side in replays.items()}
    failures = [text for of_side in replays.values() for one in of_side for text in one.failures]
    if not all(summaries.values()):
        raise ServerFailed(f"no call was answered; the first failure: {failures[0]}")
    _report(arguments, info, {name: s for name, s in summaries.items() if s}, failures)
    return 1 if failures else 0


def read_sessions(
    source: str, encode: Callable[[Call], Prompt], limit: int | None = None
) -> list[list[Prompt]]:
    """Return the prompts of each session of a trace, in the order of their first calls.

    Parameters
    ----------
    source
        As for `irminsul.traces.reader.read_calls`.
    encode
        Makes the prompt of a call; an empty one is left out.
    limit
        Take the first so many sessions.

    Raises
    ------
    InvalidTrace
        The file cannot be read or holds no call.
    """
    from irminsul.traces.reader import read_calls

    sessions: dict[str, list[Prompt]] = {}
    for call in read_calls(source):
        if call.session not in sessions and limit is not None and len(sessions) == limit:
            continue
        prompt = encode(call)
        if len(prompt):
            sessions.setdefault(call.session, []).append(prompt)
    if not sessions:
        raise InvalidTrace(f"{source} holds no call")
    return list(sessions.values())


def _client(url: str, arguments: argparse.Namespace) -> Client:
    return Client(url, api_key=arguments.api_key, timeout_s=arguments.timeout)


def _sides(arguments: argparse.Namespace, client: Client, info: ServerInfo) -> list[Side]:
    if info.cache != "irminsul":
        raise ServerFailed(
            f"{client.base_url} does not run irminsul: start it with --radix-cache-backend "
            "irminsul, and name a server without it by --baseline-url"
        )
    sides = []
    if arguments.side != "prefix":
        sides.append(Side(REUSE, client, reuse=True))
    if arguments.side != "reuse":
        if arguments.baseline_url:
            other = _client(arguments.baseline_url, arguments)
            other.info()
            sides.append(Side(PREFIX, other, reuse=None))
        else:
            sides.append(Side(PREFIX, client, reuse=False))
    return sides


def _encoder(arguments: argparse.Namespace, info: ServerInfo) -> Callable[[Call], Prompt]:
    if arguments.tokenizer is None and info.takes_text:
        return _as_text
    from irminsul.tokenizer import load_tokenizer
    from irminsul.traces.corpus import tokenize_call

    tokenizer = load_tokenizer(arguments.tokenizer)

    def encode(call: Call) -> Prompt:
        ids: list[int] = tokenize_call(call, tokenizer).tokens.tolist()
        return ids

    return encode


def _as_text(call: Call) -> Prompt:
    from irminsul.traces.template import render_chat

    if call.token_ids is not None:
        return list(call.token_ids)
    if call.messages is not None:
        return render_chat(call.messages, call.tools)
    return call.prompt or ""


def _replay_all(
    arguments: argparse.Namespace, sides: list[Side], sessions: list[list[Prompt]]
) -> dict[str, list[Replay]]:
    """Run every side `repeats` times, in turn, each replay under a key of its own."""
    found: dict[str, list[Replay]] = {side.name: [] for side in sides}
    progress = _Progress(arguments.repeats * len(sides) * sum(map(len, sessions)))
    for number in range(arguments.repeats):
        # Who goes first alternates, so that drift of the machine falls on both alike.
        for side in sides[:: -1 if number % 2 else 1]:
            if arguments.flush:
                side.client.flush()
            found[side.name].append(
                replay(
                    side,
                    sessions,
                    workers=arguments.sessions,
                    max_tokens=arguments.max_tokens,
                    key=f"bench-{secrets.token_hex(8)}",
                    progress=progress.step,
                )
            )
    return found


class _Progress:
    """Counts calls on standard error, where that is a terminal."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._lock = total, 0, threading.Lock()

    def step(self) -> None:
        with self._lock:
            self._done += 1
            if sys.stderr.isatty():
                end = "\n" if self._done == self._total else ""
                print(f"\r{self._done} of {self._total} calls", end=end, file=sys.stderr)


def _report(
    arguments: argparse.Namespace,
    info: ServerInfo,
    summaries: dict[str, Summary],
    failures: list[str],
) -> None:
    if arguments.json:
        sides = {name: _as_dict(summary) for name, summary in summaries.items()}
        content: dict[str, Any] = {"server": asdict(info), "sides": sides, "failures": failures}
        if len(summaries) == 2:
            content["ratios"] = _ratios(summaries)
        print(json.dumps(content, indent=2))
        return
    print(f"sglang {info.version}, {info.attention} attention, {info.ranks} ranks, {info.model}")
    print(f"{arguments.prompts}, {arguments.sessions} sessions at once\n")
    _print_table(summaries.items())
    if len(summaries) == 2:
        ratios = _ratios(summaries)
        print(
            f"\nirminsul: mean time to first token {ratios['ttft_mean']:.2f}x lower, "
            f"{ratios['calls_per_s']:.2f}x the calls per second"
        )
    if failures:
        print(f"\n{len(failures)} calls failed, for example: {failures[0]}")


def _print_table(sides: Iterable[tuple[str, Summary]]) -> None:
    print(
        f"{'':<13}{'calls':>6}{'TTFT mean':>11}{'p50':>9}{'p95':>9}{'p99':>9}"
        f"{'calls/s':>9}{'prompt tok/s':>14}{'cached':>9}"
    )
    for name, side in sides:
        print(
            f"{name:<13}{side.calls:>6}{_ms(side.ttft_mean_s):>11}{_ms(side.ttft_p50_s):>9}"
            f"{_ms(side.ttft_p95_s):>9}{_ms(side.ttft_p99_s):>9}{side.calls_per_s:>9.2f}"
            f"{side.prompt_tokens_per_s:>14.0f}{100 * side.cached_share:>7.1f} %"
        )


def _ratios(summaries: dict[str, Summary]) -> dict[str, float]:
    mine, other = summaries[REUSE], summaries[PREFIX]
    return {
        "ttft_mean": other.ttft_mean_s / mine.ttft_mean_s,
        "ttft_p50": other.ttft_p50_s / mine.ttft_p50_s,
        "calls_per_s": mine.calls_per_s / other.calls_per_s,
    }


def _as_dict(summary: Summary) -> dict[str, Any]:
    return {**asdict(summary), "cached_share": summary.cached_share}


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"
