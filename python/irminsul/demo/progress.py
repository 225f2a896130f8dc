"""Steps of a long run -> a progress display on standard error.

Must not know what the steps are. A terminal gets a live bar; a file or a pipe gets plain lines.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self, TextIO

from irminsul.errors import MissingExtra

__all__ = ["Progress", "import_rich"]


def import_rich() -> None:
    """Raise `MissingExtra` unless ``rich`` can be imported."""
    try:
        import rich  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            "showing tables needs the package rich: pip install 'irminsul-kv[cli]'"
        ) from error


class Progress:
    """Show how far a run is; use it as a context manager.

    Parameters
    ----------
    steps
        Number of `step` calls that make the run complete.
    stream
        Where to show it; standard error by default.
    """

    def __init__(self, steps: int, stream: TextIO | None = None) -> None:
        self._steps, self._done = steps, 0
        self._stream = stream or sys.stderr
        self._bar: Any = None

    def __enter__(self) -> Self:
        if self._stream.isatty():
            import_rich()
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            columns = (BarColumn(30), MofNCompleteColumn(), TimeElapsedColumn())
            text = TextColumn("{task.description}")
            self._bar = Bar(*columns, text, console=Console(file=self._stream), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("", total=self._steps)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.stop()

    def say(self, text: str) -> None:
        """Show what is going on now."""
        if self._bar:
            self._bar.update(self._task, description=text)
        else:
            print(f"[{self._done:>3}/{self._steps}] {text}", file=self._stream, flush=True)

    def step(self, text: str) -> None:
        """Count one step as done and show its outcome."""
        self._done += 1
        if self._bar:
            self._bar.advance(self._task)
        self.say(text)
