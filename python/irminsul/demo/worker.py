"""Prompts on standard input -> time to first token on standard output, from one SGLang engine.

Must not know what is compared: `engine.EngineProcess` starts it, once with reuse and once without.

It is a process of its own because the engine reads its settings from the environment, prints on
standard output, and is best ended together with everything it started.
Protocol, JSON lines: in ``{"id", "ids"}`` or ``{"flush": true}``; out ``{"ready": true}``, then one
answer for each line. End of input ends the engine.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from typing import Any, TextIO

__all__ = ["main", "serve"]

_ONE_TOKEN = {"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True}


def serve(engine: Any, requests: Iterable[str], answers: TextIO) -> None:
    """Answer every request line with one line."""
    for line in requests:
        request = json.loads(line)
        if request.get("flush"):
            engine.flush_cache()
            answer: dict[str, Any] = {"flushed": True}
        else:
            answer = _generate(engine, request["id"], request["ids"])
        print(json.dumps(answer), file=answers, flush=True)


def _generate(engine: Any, request_id: str, ids: list[int]) -> dict[str, Any]:
    start = time.perf_counter()
    # One new token: the time to the answer is the time to the first token.
    result = engine.generate(input_ids=ids, sampling_params=_ONE_TOKEN, rid=request_id)
    seconds = time.perf_counter() - start
    return {
        "id": request_id,
        "seconds": seconds,
        "token": result["output_ids"][0],
        "cached_tokens": result["meta_info"]["cached_tokens"],
    }


def main() -> None:
    """Start the engine whose arguments are the JSON object in argv[1], and serve."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the engine prints goes to the log
    import sglang

    engine = sglang.Engine(**json.loads(sys.argv[1]))
    try:
        print(json.dumps({"ready": True}), file=answers, flush=True)
        serve(engine, sys.stdin, answers)
    finally:
        engine.shutdown()


if __name__ == "__main__":
    main()
