"""Command line -> one subcommand's exit status.

Must not know what any subcommand does: each is a module of its own, imported when it is chosen.

Exit status: 0 done, 1 a failure or a mismatch was found, 2 the command line or its input is wrong.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Protocol, cast

from irminsul.errors import (
    InvalidParams,
    InvalidTokens,
    InvalidTrace,
    IrminsulError,
    NativeUnavailable,
)

__all__ = ["Command", "main"]

# name: (module, one line for --help). The module has `add_arguments` and `run`, see `Command`;
# its imports at the top must be light, because choosing another subcommand's help loads it too.
COMMANDS: dict[str, tuple[str, str]] = {
    "analyze": ("irminsul.traces.command", "say how much of logged prompts can be reused"),
    "bench": ("irminsul.live.bench", "replay recorded traffic against a live server"),
    "chunk": ("irminsul.chunk_command", "cut token ids into chunks and print their fingerprints"),
    "demo": ("irminsul.demo.command", "run an agent conversation through SGLang on the CPU"),
    "doctor": ("irminsul.doctor", "check versions, the engine's hooks and native parts"),
    "verify": ("irminsul.live.verify", "prove on a live server that moved text is reused"),
}

OK, FAILURE, USAGE = 0, 1, 2
_USER_ERRORS = (InvalidParams, InvalidTokens, InvalidTrace)


class Command(Protocol):
    """What a subcommand's module provides."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the subcommand's own arguments; ``--json`` is there already."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do the work and return the exit status; raise `IrminsulError` for what went wrong."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments` (default: the process's own) and return the exit status."""
    try:
        parser = build_parser()
    except NativeUnavailable as error:
        print(f"irminsul: {error}", file=sys.stderr)
        return FAILURE
    options = parser.parse_args(arguments)
    command: Command = options.command
    try:
        return command.run(options)
    except IrminsulError as error:
        print(f"irminsul: {error}", file=sys.stderr)
        return USAGE if isinstance(error, _USER_ERRORS) else FAILURE
    except KeyboardInterrupt:
        print("irminsul: interrupted", file=sys.stderr)
        return FAILURE
    except BrokenPipeError:
        # The reader went away (`| head`). Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all subcommands.

    Raises
    ------
    NativeUnavailable
        The extension module does not load, without which no subcommand does.
    """
    # Here, so that `main` is there to say so.
    from irminsul import __version__

    parser = argparse.ArgumentParser(
        prog="irminsul", description="Position-independent KV cache for MLA models."
    )
    parser.add_argument("--version", action="version", version=f"irminsul {__version__}")
    subcommands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (module, summary) in COMMANDS.items():
        command = cast(Command, importlib.import_module(module))
        child = subcommands.add_parser(name, help=summary, description=_sentence(summary))
        child.add_argument("--json", action="store_true", help="print one JSON object for machines")
        command.add_arguments(child)
        child.set_defaults(command=command)
    return parser


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
