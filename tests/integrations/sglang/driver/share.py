"""Sessions over one document at several offsets -> answers, and the slots that they hold meanwhile.

The same requests twice: with ids that have their rows moved, then with ids that borrow pages.
"""

from __future__ import annotations

import asyncio
from typing import Any

from host import Host, answer
from text import Writer


def run(host: Host) -> dict[str, Any]:
    return {kind: _all(host, kind) for kind in ("moved", "lent")}


def _all(host: Host, kind: str) -> dict[str, Any]:
    writer = Writer(seed=21)
    document = writer.text(900)
    lender = writer.text(70) + document + writer.text(10)
    host.run(lender, f"{kind}-lender", max_new_tokens=2)
    prompts = [writer.text(n) + document + writer.text(20) for n in (41, 100, 150, 233)]
    facts = {
        "sessions": _sessions(host, kind, prompts),
        "turn": _next_turn(host, kind, writer, prompts[1]),
        "evicted": _eviction(host, kind, writer, document),
        "aborted": _abort(host, kind, writer, document),
    }
    host.idle_check()
    facts["idle"] = host.engine.loop.run_until_complete(_settled(host))
    host.flush()
    facts["flushed"] = answer(host.run(prompts[0], f"{kind}-flushed"))["cached"]
    host.flush()
    return facts


async def used(host: Host) -> int:
    """Return how many slots are neither free nor can be evicted."""
    return int((await host.engine.tokenizer_manager.get_loads())[0].num_used_tokens)


async def _settled(host: Host) -> int:
    """Return what stays in use: the last answer is on its way before its slots are free."""
    for _ in range(100):
        if not await used(host):
            break
        await asyncio.sleep(0.1)
    return await used(host)


def watched(host: Host, requests: list[Any], aborts: dict[str, float] | None = None) -> Any:
    """Run `requests` together; return their answers and the most slots they held."""
    seen = [0]

    async def look() -> None:
        while True:
            await asyncio.sleep(0.05)
            seen.append(await used(host))

    async def both() -> list[Any]:
        task = asyncio.ensure_future(look())
        try:
            return await host._gather(requests, aborts or {})
        finally:
            task.cancel()

    return host.engine.loop.run_until_complete(both()), max(seen)


def _sessions(host: Host, kind: str, prompts: list[list[int]]) -> dict[str, Any]:
    requests = [
        host.request(prompt, f"{kind}-session-{index}", max_new_tokens=24)
        for index, prompt in enumerate(prompts)
    ]
    results, held = watched(host, requests)
    answers = [answer(result) for result in results]
    return {
        "tokens": [one["tokens"] for one in answers],
        "cached": [one["cached"] for one in answers],
        "prompt": [one["prompt"] for one in answers],
        "held": held,
    }


def _next_turn(host: Host, kind: str, writer: Writer, prompt: list[int]) -> dict[str, Any]:
    """A session goes on: its last answer and a new question behind all that was there."""
    first = answer(host.run(prompt, f"{kind}-turn-1", max_new_tokens=200))
    longer = prompt + first["tokens"] + writer.text(30)
    second = answer(host.run(longer, f"{kind}-turn-2"))
    return {"prompt": second["prompt"], "cached": second["cached"], "tokens": second["tokens"]}


def _eviction(host: Host, kind: str, writer: Writer, document: list[int]) -> dict[str, Any]:
    """While a session decodes, others fill the pool several times over."""
    pool = host.config["pool"]
    fill = [writer.text(pool // 4) for _ in range(8)]
    session = host.request(
        writer.text(77) + document + writer.text(9), f"{kind}-evict-session", max_new_tokens=60
    )
    others = [
        host.request(ids, f"{kind}-evict-fill-{index}", max_new_tokens=1)
        for index, ids in enumerate(fill)
    ]
    results, _ = watched(host, [session, *others])
    after = host.run(
        writer.text(88) + document + writer.text(9), f"{kind}-evict-after", max_new_tokens=4
    )
    return {
        "tokens": answer(results[0])["tokens"],
        "cached": answer(results[0])["cached"],
        "after": answer(after)["cached"],
    }


def _abort(host: Host, kind: str, writer: Writer, document: list[int]) -> dict[str, Any]:
    requests = [
        host.request(
            writer.text(50 + 31 * n) + document + writer.text(9),
            f"{kind}-abort-{n}",
            max_new_tokens=90,
        )
        for n in range(3)
    ]
    results, _ = watched(host, requests, {f"{kind}-abort-1": 1.5})
    return {
        "tokens": [answer(results[n])["tokens"] for n in (0, 2)],
        # An abort that meets a request in the queue ends it by an exception.
        "end": answer(results[1])["finish"] if isinstance(results[1], dict) else "abort",
    }
