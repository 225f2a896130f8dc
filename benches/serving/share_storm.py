"""Borrowers on a pool too small for them -> what others answer meanwhile, and what is left behind.

One engine with ``IRMINSUL_REUSE=share``, whose scheduler counts all slots after every step and ends
on a lost one. A round sends requests over a few texts, which borrow them, at once: more than fit,
some aborted, others retracted. Between them stand prompts that reuse nothing, whose answers were
taken on the idle engine. Then the cache is emptied. Results are written after every round.

    python benches/serving/share_storm.py --seconds 90 --out FILE
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from agreement import by_rounding, parted, summary
from backend_engine import Engine
from backend_rows import USUAL_NOISE
from common import Clock
from rows import Row, row, save, show
from share_answers import CHECKS, Drawn, asked, parsed, parser, start

BYSTANDERS, LONG = 8, 64
_PRESSED = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "20"}
_COUNTED = {
    "irminsul:borrowed_tokens_total": "tokens borrowed",
    "sglang:evicted_tokens_total": "tokens evicted",
}


@dataclass
class Storm:
    """The load, and what has been seen of it.

    Parameters
    ----------
    engine
        An engine that lends.
    drawn
        Makes texts and prompts over them.
    size
        Requests of a round.
    """

    engine: Engine
    drawn: Drawn
    size: int
    others: list[dict[str, Any]] = field(default_factory=list)
    idle: list[Any] = field(default_factory=list)
    usual: float = USUAL_NOISE
    theirs: list[tuple[Any, Any]] = field(default_factory=list)
    borrowers: list[tuple[bool, Any]] = field(default_factory=list)
    left: list[int] = field(default_factory=list)

    def prepare(self) -> None:
        """Take answers to prompts that reuse nothing, alone, and how far company moves them."""
        prompts = [self.drawn.fresh(300 + 57 * n) for n in range(BYSTANDERS)]
        self.others = asked(prompts, "apart", exact=True)
        self.idle = self.engine("answers", self.others, False)
        self.engine("flush")
        together = summary(self.engine("answers", self.others, True), self.idle)
        self.usual = max(USUAL_NOISE, together["noise"])
        self.engine("flush")

    def round(self) -> None:
        number = len(self.left)
        texts = self.drawn.texts
        self.engine("answers", asked([self.drawn.over(t, 90) for t in texts], "lender"), False)
        requests, places = list[dict[str, Any]](), list[int | None]()
        for n in range(self.size):
            if n % 3 == 2:
                places.append((number + n // 3) % BYSTANDERS)
                requests.append(self.others[places[-1] or 0])
                continue
            prompt = self.drawn.over(texts[n % len(texts)], 40 + 29 * (n + number) % 500)
            more = {"abort": 0.1 * (1 + n % 11)} if n % 8 == 0 else {}
            requests += asked([prompt], f"storm-{n}", **{"tokens": LONG, **more})
            places.append(None)
        answers = self.engine("answers", requests, True)
        for place, request, answer in zip(places, requests, answers, strict=True):
            if place is None:
                self.borrowers.append(("abort" in request, answer))
            else:
                self.theirs.append((answer, self.idle[place]))
        self.engine("flush")
        self.left.append(self.engine("used"))

    def others_row(self, bar_id: str, case: str, judged: bool) -> Row:
        """Compare answers to those of the idle engine.

        A request that SGLang before 0.5.19 retracts before its first token was handled loses that
        token's logprob, and those behind it move up. Of such an answer the tokens are judged alone:
        whether they part where two were nearly as likely.
        """
        short = [len(ours["logprobs"]) < len(ours["tokens"]) for ours, _ in self.theirs]
        pairs = [
            ({**ours, "logprobs": []} if lost else ours, idle)
            for (ours, idle), lost in zip(self.theirs, short, strict=True)
        ]
        counts = summary([ours for ours, _ in pairs], [idle for _, idle in pairs])
        return row(
            bar_id,
            case,
            "answers of others that differ from idle ones by rounding at most",
            counts["answers"] if by_rounding(counts, self.usual) else counts["equal"],
            "",
            bar=f"== {len(pairs)}" if judged else None,
            samples=len(pairs),
            counts=counts,
            usual_noise=self.usual,
            retracted=sum(bool(ours["retracted"]) for ours, _ in pairs),
            logprobs_lost=sum(short),
            furthest=self._furthest(pairs),
        )

    def _furthest(self, pairs: list[tuple[Any, Any]]) -> list[dict[str, Any]]:
        """Say of the answers furthest off where their tokens part, and how likely the two were."""
        found = []
        for ours, idle in pairs:
            steps, margin, noise = parted(ours, idle)
            kept = {"retracted": ours["retracted"], "logprobs": len(ours["logprobs"])}
            found.append({"noise": noise, "steps": steps, "margin": margin, **kept})
        return sorted(found, key=lambda one: -one["noise"])[:3]

    def rows(self, case: str) -> list[Row]:
        going = [answer for aborted, answer in self.borrowers if not aborted]
        whole = sum(len(answer["tokens"]) == LONG for answer in going)
        ended = sum(answer["ended"] == "abort" for _, answer in self.borrowers)
        everyone = [a for _, a in self.borrowers] + [a for a, _ in self.theirs]
        counted = self.engine("counters")
        # Not those that requests ask for by what they want.
        failed = {
            reason: count
            for reason, count in self.engine("fallbacks").items()
            if not reason.startswith(("exact", "batch_"))
        }

        def made(metric: str, value: float, bar: str, **more: Any) -> Row:
            more = {"samples": len(everyone), **more}
            return row("backend.2-storm", case, metric, value, "", bar=bar, **more)

        rounds = {"samples": len(self.left)}
        return [
            self.others_row("backend.2-storm", case, judged=True),
            made("answers over borrowed rows that are whole", whole, f"== {len(going)}"),
            made("slots in use after a round, most", max(self.left), "== 0", **rounds),
            made("requests aborted", ended, ">= 1"),
            made("retractions", sum(answer["retracted"] for answer in everyone), ">= 1"),
            *(made(said, counted.get(name, 0.0), ">= 1") for name, said in _COUNTED.items()),
            made("fallbacks nobody asked for", sum(failed.values()), "== 0", fallbacks=failed),
        ]


def storms(arguments: argparse.Namespace) -> dict[str, Storm]:
    """Start the engine that lends, and controls on request."""
    more = {"schedule_conservativeness": 0.05, "enable_metrics": True}
    known = {
        "lent": (more, {"IRMINSUL_REUSE": "share", **CHECKS, **_PRESSED}),
        "moved": (more, {"IRMINSUL_REUSE": "copy", **CHECKS, **_PRESSED}),
        "stock": ({**more, "radix_cache_backend": None}, _PRESSED),
    }
    made = {name: known[name] for name in ("lent", *filter(None, arguments.control.split(",")))}
    return {
        name: Storm(engine, Drawn(arguments.model, 4), arguments.requests)
        for name, engine in start(arguments, made).items()
    }


def main() -> int:
    made = parser(__doc__ or "", 64 * 191)
    made.add_argument("--requests", type=int, default=45, help="of a round")
    made.add_argument("--rounds", type=int, default=40)
    made.add_argument("--seconds", type=float, default=600, help="no round begins after these")
    made.add_argument("--control", default="", help="also: moved, stock")
    arguments = parsed(made)
    clock, running, rows = Clock(arguments.seconds), storms(arguments), list[Row]()
    ours = running.pop("lent")
    everyone = [ours, *running.values()]
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(Storm.prepare, everyone))
            while clock.goes_on(len(ours.left), least=1) and len(ours.left) < arguments.rounds:
                list(pool.map(Storm.round, everyone))
                case = f"{len(ours.left)} rounds of {ours.size} on {arguments.pool} slots"
                rows = ours.rows(case)
                for name, storm in running.items():
                    bar_id = "backend.2-storm-control"
                    rows.append(storm.others_row(bar_id, f"{case}, {name}", judged=False))
                if arguments.out:
                    save(arguments.out, rows)
    finally:
        for storm in everyone:
            storm.engine.stop()
        show(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
