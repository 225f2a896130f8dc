"""SGLang's `PrefillAdder` -> what it may still admit, and how that is changed.

Must not know spans beyond a window's reach, locks or plans.
"""

from __future__ import annotations

from typing import Any

from irminsul.integrations.sglang.spans import Window


def credit(adder: Any, window: Window) -> int:
    """Return how many tokens beyond its chunk budget the adder may admit of `window`."""
    budget = adder.rem_chunk_tokens
    if budget is None:
        return window.reused
    end = window.reach(budget)
    admissible = end - window.start
    if end == window.end:
        admissible = adder.ceil_paged_tokens(admissible)
    return int(max(0, admissible - budget))


def has_room(adder: Any, window: Window) -> bool:
    """Return whether the pool holds the round that the credit allows.

    SGLang goes on with a long prompt even when its own estimate says there is no room, for a full
    chunk budget; a round longer than that must never be forced.
    """
    round_tokens = credit(adder, window) + (adder.rem_chunk_tokens or 0)
    return bool(adder.ceil_paged_tokens(round_tokens) + adder.page_size <= adder.rem_total_tokens)


def change_budget(adder: Any, tokens: int) -> None:
    """Let the adder take `tokens` more in this round."""
    adder.rem_input_tokens += tokens
    if adder.rem_chunk_tokens is not None:
        adder.rem_chunk_tokens += tokens


def decoding(adder: Any) -> int:
    """Return how many requests are decoding."""
    running = adder.running_batch
    return 0 if running is None else sum(not request.finished() for request in running.reqs)


def holds(adder: Any, request: Any) -> bool:
    """Return whether `request` is the one that was admitted last."""
    return bool(adder.can_run_list) and adder.can_run_list[-1] is request
