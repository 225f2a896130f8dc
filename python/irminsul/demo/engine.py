"""A model folder and a choice -> a running SGLang process that answers prompts.

Must not know turns or tables.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from irminsul.demo import cpu_host
from irminsul.demo.plugin import MEASURE_FOLDER, PLUGIN_NAME, plugin_folder, read_measures
from irminsul.errors import EngineFailed

__all__ = ["Answer", "EngineProcess"]

_LOG_TAIL_LINES = 25
_STOP_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Answer:
    """What the engine did with one prompt.

    Attributes
    ----------
    seconds : float
        Time to first token.
    token : int
        The greedy first token.
    cached_tokens : int
        Prompt tokens that were not computed, by the engine's own count.
    prefix_tokens : int
        Those of them that the engine's prefix match found.
    logits : ndarray, float32 [vocabulary]
        Logits of the first token.
    """

    seconds: float
    token: int
    cached_tokens: int
    prefix_tokens: int
    logits: npt.NDArray[np.float32]


class EngineProcess:
    """An SGLang engine on the CPU in a process of its own; use it as a context manager.

    Parameters
    ----------
    model
        Model folder.
    reuse
        Serve with irminsul's cache; otherwise with SGLang's own prefix cache.
    pool_tokens
        Tokens that the KV pool holds.
    context_length
        Longest prompt that the model takes.

    Raises
    ------
    EngineFailed
        On entering, when the engine does not start; later, when it ends by itself. The message
        carries the last lines of its log.
    """

    def __init__(self, model: Path, *, reuse: bool, pool_tokens: int, context_length: int) -> None:
        self._arguments = engine_arguments(model, reuse, pool_tokens, context_length)
        self._reuse = reuse
        self._folder = tempfile.TemporaryDirectory(prefix="irminsul-demo-")
        self._log = Path(self._folder.name, "engine.log")
        self._asked = 0

    def __enter__(self) -> Self:
        folder = Path(self._folder.name)
        (folder / "measures").mkdir()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "irminsul.demo.worker", json.dumps(self._arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment(plugin_folder(folder / "plugin"), folder / "measures"),
                text=True,
                # A group of its own: an interrupt goes to us alone, and ending reaches all of it.
                start_new_session=True,
            )
        try:
            self._read()
        except BaseException:
            self.close(0)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # After an error or an interrupt nobody waits for the prompt that is still being served.
        self.close(_STOP_SECONDS if error is None else 0)

    def ask(self, ids: Sequence[int] | npt.NDArray[np.uint32]) -> Answer:
        """Send one prompt and wait for its first token."""
        self._asked += 1
        request = f"demo-{self._asked}"
        reply = self._send({"id": request, "ids": [int(token) for token in ids]})
        try:
            prefix, logits = read_measures(Path(self._folder.name, "measures"), request)
        except FileNotFoundError:
            # SGLang logs a hook that cannot be put in place and goes on without it.
            raise self._failure("SGLang did not run the demo's measurements") from None
        return Answer(reply["seconds"], reply["token"], reply["cached_tokens"], prefix, logits)

    def flush(self) -> None:
        """Empty the engine's caches."""
        self._send({"flush": True})

    def close(self, patience_s: float = _STOP_SECONDS) -> None:
        """End the engine, by force after `patience_s` seconds, and remove its files; repeatable."""
        process = self._process
        if process.stdin:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
        # The engine's own processes outlive a worker that was killed.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout:
            process.stdout.close()
        self._folder.cleanup()

    def _environment(self, plugins: Path, measures: Path) -> dict[str, str]:
        chosen = [PLUGIN_NAME, *(["irminsul"] if self._reuse else [])]
        return {
            **os.environ,
            **cpu_host.environment(),
            # SGLang picks CUDA code paths where it sees a GPU, also with device="cpu".
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(plugins), os.getenv("PYTHONPATH")])),
            "SGLANG_PLUGINS": ",".join(chosen),
            MEASURE_FOLDER: str(measures),
        }

    def _send(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failure()
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _failure(self, what: str = "SGLang ended") -> EngineFailed:
        tail = self._log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        side = "with irminsul" if self._reuse else "without irminsul"
        return EngineFailed(f"{what} ({side}); the end of its log:\n" + "\n".join(tail))


def engine_arguments(
    model: Path, reuse: bool, pool_tokens: int, context_length: int
) -> dict[str, Any]:
    """Return the arguments of ``sglang.Engine``, the same on both sides but for the cache."""
    arguments = cpu_host.engine_arguments(
        model,
        max_total_tokens=pool_tokens,
        context_length=context_length,
        # One round per prompt on both sides: the times compare prefill, not scheduling.
        chunked_prefill_size=-1,
        max_prefill_tokens=context_length,
        # Derived from the longest prefill otherwise, which leaves a small machine nothing.
        mem_fraction_static=0.5,
        # irminsul runs a request as one row per hole, at most as many as there may be requests.
        max_running_requests=64,
        # An idle scheduler would spin on the core that the other engine needs.
        sleep_on_idle=True,
    )
    return {**arguments, "radix_cache_backend": "irminsul"} if reuse else arguments


def warm_up(engine: EngineProcess, vocab_size: int = 100_000) -> None:
    """Let the engine take every path once, then empty it: first calls pay for lazy start-up.

    The second prompt shifts the first one's content, so that the side that can reuse it does.
    """
    ids = np.random.default_rng(0).integers(1000, vocab_size, 1200, dtype=np.uint32)
    for prompt in (ids, np.concatenate([ids[-40:], ids[:-40]])):
        engine.ask(prompt)
    engine.flush()
