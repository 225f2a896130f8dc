"""A list of faults -> an HTTP server that answers like SGLang with irminsul, or wrongly."""

from __future__ import annotations

import contextlib
import json
import threading
import zlib
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WINDOW = 16  # ids that must repeat for a place to count as known
INFO = {
    "version": "0.5.23",
    "model_path": "tiny",
    "radix_cache_backend": "irminsul",
    "attention_backend": "triton",
    "prefill_attention_backend": None,
    "tp_size": 1,
    "pp_size": 1,
    "skip_tokenizer_init": True,
    "enable_metrics": True,
}


class FakeServer:
    """Counts cached tokens as irminsul would, by looking at what it was sent before.

    Parameters
    ----------
    faults
        Names of what to do wrong: ``no_reuse``, ``no_prefix``, ``leaks`` (keys are ignored),
        ``ignores_opt_out``, ``invents`` (reports hits for fresh text), ``counts_all``,
        ``garbage`` (answers on moved rows are wild), ``taints`` (so are exact ones), ``noisy``,
        ``fails`` (every second generate), ``breaks_off``, ``silent`` (streams nothing),
        ``counter_stuck``.
    info
        Changes to what /server_info says.
    """

    def __init__(self, *faults: str, **info: Any) -> None:
        self.faults = set(faults)
        self.info = {**INFO, **info}
        self.requests: list[dict[str, Any]] = []
        self.flushes = 0
        self._seen: dict[tuple[str, bool], list[list[int]]] = defaultdict(list)
        self._reused = 0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def running(self) -> Iterator[str]:
        """Serve, and yield the address."""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                fake.get(self)

            def do_POST(self) -> None:
                fake.post(self)

            def log_message(self, *_: Any) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def get(self, handler: Any) -> None:
        if handler.path == "/server_info":
            _send(handler, 200, json.dumps(self.info))
        elif handler.path == "/metrics":
            _send(handler, 200, f'irminsul:reused_tokens_total{{tp_rank="0"}} {self._reused}\n')
        else:
            _send(handler, 404, "Not Found")

    def post(self, handler: Any) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        if handler.path == "/flush_cache":
            self.flushes += 1
            return _send(handler, 200, "Cache flushed.")
        request = json.loads(body)
        with self._lock:
            self.requests.append({**request, "authorization": handler.headers["Authorization"]})
            number = len(self.requests)
            answer = self._answer(request, number)
        if "fails" in self.faults and number % 2 == 0:
            return _send(handler, 400, json.dumps({"error": {"message": "input is too long"}}))
        if request.get("stream"):
            return self._stream(handler, answer)
        return _send(handler, 200, json.dumps(answer))

    def _stream(self, handler: Any, answer: Any) -> None:
        handler.send_response(200)
        whole = f"data: {json.dumps(answer)}\n\ndata: [DONE]\n\n".encode()
        handler.send_header("Content-Length", str(len(whole)))
        handler.end_headers()
        if "breaks_off" in self.faults:
            handler.wfile.write(whole[:40])
            handler.connection.close()
        elif "silent" in self.faults:
            handler.wfile.write(b" " * (len(whole) - 14) + b"data: [DONE]\n\n")
        elif "late_error" in self.faults:
            error = b'data: {"error": {"message": "aborted"}}\n\n'
            handler.wfile.write(error + b"\n" * (len(whole) - len(error)))
        else:
            handler.wfile.write(whole)

    def _answer(self, request: dict[str, Any], number: int) -> dict[str, Any]:
        ids = request.get("input_ids") or [
            zlib.crc32(word.encode()) for word in request["text"].split()
        ]
        cached, moved = self._cached(request, ids)
        length = request["sampling_params"]["max_new_tokens"]
        noise = 0.01 * (number % 3) if "noisy" in self.faults else 0.0
        wild = bool(moved) and "garbage" in self.faults
        opted_out = request["sampling_params"].get("custom_params") == {"irminsul": False}
        wild |= "taints" in self.faults and opted_out and self._known(ids, request)
        meta: dict[str, Any] = {
            "prompt_tokens": len(ids),
            "cached_tokens": cached,
            "completion_tokens": length,
        }
        if request.get("return_logprob"):
            meta |= _logprobs(sum(ids), length, wild, noise)
        return {"meta_info": meta}

    def _known(self, ids: list[int], request: dict[str, Any]) -> bool:
        return bool(_repeated(ids, self._seen[request.get("extra_key", ""), False]))

    def _cached(self, request: dict[str, Any], ids: list[int]) -> tuple[int, int]:
        """Return how many tokens of `ids` are cached, and how many of those were moved."""
        key = "" if "leaks" in self.faults else request.get("extra_key", "")
        option = request["sampling_params"].get("custom_params", {}).get("irminsul", True)
        exact = option is False and "ignores_opt_out" not in self.faults
        seen = self._seen[key, exact]
        prefix = max((_common(ids, old) for old in seen), default=0)
        found = prefix if exact else max(prefix, _repeated(ids, seen))
        if "no_reuse" in self.faults and not exact:
            found = prefix
        if "no_prefix" in self.faults and exact:
            found = 0
        seen.append(ids)
        if "invents" in self.faults and not exact:
            found = max(found, len(ids) // 2)
        moved = found - min(prefix, found)
        if "counter_stuck" not in self.faults:
            self._reused += moved
        limit = len(ids) if "counts_all" in self.faults else len(ids) - 1
        return (limit if "counts_all" in self.faults else min(found, limit)), moved


def _repeated(ids: list[int], seen: list[list[int]]) -> int:
    known = {tuple(old[at : at + WINDOW]) for old in seen for at in range(len(old) - WINDOW + 1)}
    places = [at for at in range(len(ids) - WINDOW + 1) if tuple(ids[at : at + WINDOW]) in known]
    return len({place + step for place in places for step in range(WINDOW)})


def _common(left: list[int], right: list[int]) -> int:
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))


def _logprobs(seed: int, length: int, wild: bool, noise: float) -> dict[str, Any]:
    token = seed % 97 + (1000 if wild else 0)
    chosen = [[-0.1 - noise, token + step, None] for step in range(length)]
    likeliest = [[-0.1 - noise, token, None], [-3.0 + noise, token + 500, None]]
    return {"output_token_logprobs": chosen, "output_top_logprobs": [likeliest] * length}


def _send(handler: Any, status: int, text: str) -> None:
    content = text.encode()
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)
