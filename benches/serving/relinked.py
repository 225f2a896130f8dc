"""Moved blocks in another order -> what computing some of their rows again costs a first token.

Random ids: thousands of them have a mention that their row has not seen, so every share is used up
as far as the limits on rows allow (`IRMINSUL_MAX_ROW_TOKENS`).
"""

from __future__ import annotations

import statistics

import numpy as np
from common import SINK_TOKENS, Bench, Ids, Prompts, Reply
from rows import Row, ratio_row

SHARES = (0.0, 0.005, 0.01, 0.02)
BLOCKS, FRESH = 8, 150


def relinked(bench: Bench) -> list[Row]:
    """First token over moved text of which nothing, or a share, is computed again."""
    prompts, server = bench.prompts(), bench.server("irminsul")
    taken: dict[float, list[Reply]] = {share: [] for share in SHARES}
    cold: list[Reply] = []
    # The first rounds compile kernels.
    while len(cold) < bench.samples + 3 and bench.clock.goes_on(len(cold), 6):
        server.flush()
        text = prompts.fresh(bench.length)
        cold.append(server.serve(text))
        shift = len(cold) % len(SHARES)
        for share in SHARES[shift:] + SHARES[:shift]:
            option = {"custom_params": {"irminsul": {"relink": share}}}
            taken[share].append(server.serve(_shuffled(prompts, text), sampling=option))
    plain = [reply.first for reply in taken[0.0][3:]]
    made = []
    for share in SHARES[1:]:
        replies = taken[share][3:]
        first = [reply.first for reply in replies]
        found = ratio_row("links", f"relink {100 * share:g} %", first, "no relink", plain, "")
        again = [one.cached - two.cached for one, two in zip(taken[0.0][3:], replies, strict=True)]
        made.append({**found, "relinked_tokens": int(statistics.median(again))})
    whole = [reply.first for reply in cold[3:]]
    return [*made, ratio_row("links", "no relink", plain, "cold", whole, "")]


def _shuffled(prompts: Prompts, text: Ids) -> Ids:
    """Return blocks of `text` in a new order behind a new header."""
    body = text[SINK_TOKENS : SINK_TOKENS + prompts.length - FRESH]
    blocks = np.array_split(body, BLOCKS)
    order = np.random.default_rng(int(text[0])).permutation(BLOCKS)
    fresh = prompts.fresh(FRESH)
    return np.concatenate([fresh[50:], *(blocks[i] for i in order), fresh[:50]])
