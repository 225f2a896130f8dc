"""Moved blocks in another order -> what computing some of their rows again costs a first token.

Random ids: thousands of them have a mention that their row has not seen, so every share is used up
as far as the limits on rows allow (`IRMINSUL_MAX_ROW_TOKENS`).
"""

from __future__ import annotations

import statistics

import numpy as np
from common import SINK_TOKENS, Bench, Case, Clock, Ids, Prompts, interleaved
from rows import Row, ratio_row

SHARES = (0.005, 0.01, 0.02)
BLOCKS, FRESH = 8, 150


def relinked(bench: Bench) -> list[Row]:
    """First token over moved text of which nothing, or a share, is computed again."""
    prompts, server = bench.prompts(), bench.server("irminsul")
    cases = {"no relink": _case(prompts, 0.0)}
    cases |= {f"relink {100 * share:g} %": _case(prompts, share) for share in SHARES}
    # The first rounds compile kernels. Behind another case the blocks would stand in this order.
    interleaved(server, prompts, cases, 2, Clock(1e9), apart=True)
    taken = interleaved(server, prompts, cases, bench.samples, bench.clock, apart=True)
    first = {name: [reply.first for reply in replies] for name, replies in taken.items()}
    plain, cached = first["no relink"], [reply.cached for reply in taken["no relink"]]
    made = []
    for case in list(cases)[1:]:
        found = ratio_row("links", case, first[case], "no relink", plain, "")
        again = [one - two.cached for one, two in zip(cached, taken[case], strict=True)]
        made.append({**found, "computed_again": int(statistics.median(again))})
    return [*made, ratio_row("links", "no relink", plain, "cold", first["cold"], "")]


def _case(prompts: Prompts, share: float) -> Case:
    option = {"custom_params": {"irminsul": {"relink": share}}}
    return lambda text: (_shuffled(prompts, text), {"sampling": option})


def _shuffled(prompts: Prompts, text: Ids) -> Ids:
    """Return blocks of `text` in a new order behind a new header."""
    body = text[SINK_TOKENS : SINK_TOKENS + prompts.length - FRESH]
    blocks = np.array_split(body, BLOCKS)
    order = np.random.default_rng(int(text[0])).permutation(BLOCKS)
    fresh = prompts.fresh(FRESH)
    return np.concatenate([fresh[50:], *(blocks[i] for i in order), fresh[:50]])
