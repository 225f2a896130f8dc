"""A version of SGLang and a way to start it -> a running HTTP server on the CPU."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hosts
from irminsul.demo import cpu_host

sys.path.append(str(Path(__file__).parents[3] / "benches" / "serving"))
import launch

# How operators start a server.
LAUNCHERS = {
    "module": ("-m", "sglang.launch_server"),
    "serve": ("-c", "from sglang.cli.main import main; main()", "serve"),
}
_START_SECONDS = 300


@dataclass(frozen=True)
class Running:
    """A server that answers, and its log so far."""

    url: str
    log_file: Path

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")


@contextlib.contextmanager
def serve(
    version: str,
    launcher: str = "module",
    environment: dict[str, str] | None = None,
    tokenizer: bool = False,
    **arguments: Any,
) -> Iterator[Running]:
    """Serve the tiny model with irminsul; `arguments` are SGLang's, with underscores."""
    port = _free_port()
    options = cpu_host.engine_arguments(
        _with_tokenizer(hosts.model()) if tokenizer else hosts.model(),
        radix_cache_backend="irminsul",
        context_length=4096,
        max_running_requests=16,
        log_level="info",
        port=port,
        enable_metrics=True,
        skip_server_warmup=True,
        skip_tokenizer_init=not tokenizer,
        **arguments,
    )
    with tempfile.TemporaryDirectory(prefix="irminsul-test-server-") as folder:
        log = Path(folder) / "log"
        command = [sys.executable, *LAUNCHERS[launcher], *_flags(options)]
        address = f"http://127.0.0.1:{port}"
        environment = {**_environment(version, options.get("tp_size", 1)), **(environment or {})}
        with launch.running(command, address, log, _START_SECONDS, env=environment, cwd=folder):
            yield Running(address, log)


def _environment(version: str, ranks: int) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("IRMINSUL_")}
    return {
        **inherited,
        **cpu_host.environment(ranks=ranks),
        "PYTHONPATH": str(hosts.require(version)),
        "OMP_NUM_THREADS": "1",
    }


def _with_tokenizer(model: str) -> str:
    """Give the model a token for every byte, and return its folder."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = {"<s>": 0, "</s>": 1} | {letter: 2 + i for i, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab=tokens, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(Path(model) / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 16_384}
    (Path(model) / "tokenizer_config.json").write_text(json.dumps(settings))
    return model


def _flags(options: dict[str, Any]) -> Sequence[str]:
    flags = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is not False:
            flags += [flag] if value is True else [flag, str(value)]
    return flags


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
