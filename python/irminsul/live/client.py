"""Requests -> what an SGLang server answered over HTTP, with the time to the first token.

Must not know what the requests are for. Standard library only, so that it runs beside any server.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from irminsul.errors import InvalidParams, ServerFailed

__all__ = ["Client", "Prompt", "Reply", "ServerInfo", "reply_from"]

Prompt = str | Sequence[int]

_MESSAGE_LENGTH = 300


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server says about itself.

    Attributes
    ----------
    version
        SGLang's version.
    model
        Path or name of the model.
    cache
        ``--radix-cache-backend``; empty for SGLang's own cache.
    attention
        Attention backend of prefill.
    ranks
        Scheduler processes that share the model.
    takes_text
        False when the server has no tokenizer and wants token ids.
    metrics
        Whether /metrics is there.
    """

    version: str
    model: str
    cache: str
    attention: str
    ranks: int
    takes_text: bool
    metrics: bool


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back for one prompt.

    Attributes
    ----------
    prompt_tokens, cached_tokens, completion_tokens : int
        As the server counts them; cached are those it did not compute.
    tokens : tuple of int
        Ids of the answer, when logprobs were asked for.
    logprobs : tuple of float
        Natural logarithm of the probability of each of them.
    first : mapping of int to float
        The likeliest first tokens and their logprobs, the chosen one included.
    first_s, total_s : float
        Seconds to the first token (the whole answer, unless streamed) and to the last.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    first: Mapping[int, float]
    first_s: float
    total_s: float


class Client:
    """Speaks to one SGLang server; safe to use from several threads.

    Parameters
    ----------
    base_url
        For example ``http://127.0.0.1:30000``.
    api_key
        Sent as a bearer token when not empty.
    timeout_s
        Longest silence to accept.

    Raises
    ------
    InvalidParams
        `base_url` is no http address.
    """

    def __init__(self, base_url: str, *, api_key: str = "", timeout_s: float = 600.0) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise InvalidParams(f"--base-url {base_url!r} must begin with http:// or https://")
        self.base_url = base_url.rstrip("/")
        self._timeout_s = timeout_s
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def info(self) -> ServerInfo:
        """Ask the server what it is.

        Raises
        ------
        ServerFailed
            Nothing answers there, or it is no SGLang server.
        """
        found = self._json("/server_info")
        if not isinstance(found, dict) or "version" not in found or "model_path" not in found:
            raise ServerFailed(f"{self.base_url} does not answer like an SGLang server")
        attention = found.get("prefill_attention_backend") or found.get("attention_backend")
        return ServerInfo(
            version=str(found["version"]),
            model=str(found["model_path"]),
            cache=str(found.get("radix_cache_backend") or ""),
            attention=str(attention or "unknown"),
            ranks=int(found.get("tp_size") or 1) * int(found.get("pp_size") or 1),
            takes_text=not found.get("skip_tokenizer_init"),
            metrics=bool(found.get("enable_metrics")),
        )

    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int,
        key: str = "",
        reuse: bool | None = None,
        likeliest: int = 0,
        stream: bool = False,
    ) -> Reply:
        """Send one prompt and wait for its answer, greedy and of a fixed length.

        Parameters
        ----------
        prompt
            Text, or token ids.
        max_tokens
            Length of the answer in tokens.
        key
            ``extra_key``: requests with different keys share nothing.
        reuse
            True asks irminsul for reuse, False for exact service; None says nothing, as to a
            server without irminsul.
        likeliest
            How many first tokens to return logprobs of; 0 asks for no logprobs at all.
        stream
            Stream the answer, so that ``first_s`` is the time to the first token.

        Raises
        ------
        ServerFailed
            The server refused the request or went away.
        """
        sampling: dict[str, Any] = {
            "max_new_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        if reuse is not None:
            sampling["custom_params"] = {"irminsul": reuse}
        body: dict[str, Any] = {"sampling_params": sampling, "stream": stream}
        body["text" if isinstance(prompt, str) else "input_ids"] = (
            prompt if isinstance(prompt, str) else [int(token) for token in prompt]
        )
        if key:
            body["extra_key"] = key
        if likeliest:
            body |= {"return_logprob": True, "top_logprobs_num": likeliest}
        began = time.perf_counter()
        if stream:
            return self._streamed(body, began)
        answer = self._json("/generate", body)
        elapsed = time.perf_counter() - began
        return reply_from(answer, elapsed, elapsed)

    def flush(self) -> None:
        """Empty the server's caches; it refuses while requests run."""
        self._text("/flush_cache", b"")

    def metrics(self) -> str:
        """Return /metrics as text."""
        return self._text("/metrics")

    def _streamed(self, body: dict[str, Any], began: float) -> Reply:
        first: float | None = None
        last: Any = None
        for line in self._lines("/generate", body):
            if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                continue
            last = _parsed(line[5:], "/generate")
            if isinstance(last, dict) and "error" in last:
                raise ServerFailed(f"/generate failed: {_short(last['error'])}")
            first = time.perf_counter() - began if first is None else first
        if first is None:
            raise ServerFailed("/generate ended without an answer")
        return reply_from(last, first, time.perf_counter() - began)

    def _lines(self, path: str, body: dict[str, Any]) -> Iterator[bytes]:
        with self._open(path, json.dumps(body).encode()) as response:
            try:
                yield from response
            except (OSError, http.client.HTTPException) as error:
                raise ServerFailed(f"{path} broke off: {error!r}") from error

    def _json(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        return _parsed(self._text(path, data).encode(), path)

    def _text(self, path: str, data: bytes | None = None) -> str:
        with self._open(path, data) as response:
            try:
                content: bytes = response.read()
            except (OSError, http.client.HTTPException) as error:
                raise ServerFailed(f"{path} broke off: {error!r}") from error
        return content.decode("utf-8", "replace")

    def _open(self, path: str, data: bytes | None) -> Any:
        request = urllib.request.Request(self.base_url + path, data, self._headers)
        try:
            return urllib.request.urlopen(request, timeout=self._timeout_s)
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode("utf-8", "replace")
            raise ServerFailed(f"{path} answered {error.code}: {_short(text)}") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise ServerFailed(f"no answer from {self.base_url}{path}: {reason}") from error


def reply_from(answer: Any, first_s: float, total_s: float) -> Reply:
    """Return what SGLang's own form of an answer says.

    Raises
    ------
    ServerFailed
        `answer` has another form.
    """
    try:
        meta = answer["meta_info"]
        chosen = meta.get("output_token_logprobs") or []
        likeliest = meta.get("output_top_logprobs") or []
        candidates = [*(likeliest[0] if likeliest else []), *chosen[:1]]
        first = {int(entry[1]): float(entry[0]) for entry in candidates}
        return Reply(
            prompt_tokens=int(meta["prompt_tokens"]),
            cached_tokens=int(meta["cached_tokens"]),
            completion_tokens=int(meta["completion_tokens"]),
            tokens=tuple(int(entry[1]) for entry in chosen),
            logprobs=tuple(float(entry[0]) for entry in chosen),
            first=first,
            first_s=first_s,
            total_s=total_s,
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ServerFailed(f"/generate answered in another form: {_short(answer)}") from error


def _parsed(content: bytes, path: str) -> Any:
    try:
        return json.loads(content)
    except ValueError as error:
        raise ServerFailed(f"{path} did not answer in JSON: {_short(content)}") from error


def _short(value: object) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    text = " ".join(text.split())
    return text if len(text) <= _MESSAGE_LENGTH else text[:_MESSAGE_LENGTH] + " ..."
