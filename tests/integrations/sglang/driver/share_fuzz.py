"""A seed -> random sessions that borrow on the real tree, pool and requests, and the lies they met.

After every step each running request is asked, through the tiles that attention would read, what
its positions hold, and SGLang's own sum of all slots is made.
"""

from __future__ import annotations

import json
import random
import sys
from array import array
from types import SimpleNamespace
from typing import Any

from irminsul.integrations.sglang.share import lending, pages
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from share_parts import ENTRIES, REQUESTS, WIDTH, Parts
from share_truth import SIZE


class Fuzz(Parts):
    """Random steps of up to four requests at a time."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.documents = [self.text(self.random.randint(300, 900)) for _ in range(4)]
        # Few of them, so that many requests begin alike.
        self.headers = [self.text(self.random.randint(70, 200)) for _ in range(3)]
        # Common endings too, often at positions that differ by whole pages.
        self.questions = [self.text(self.random.randint(70, 150)) for _ in range(2)]
        self.told: list[list[int]] = []
        self.retracted: list[Any] = []
        self.facts |= {"next_turns": 0, "ends": [0, 0, 0], "again": 0, "refused": 0}
        self._allocator_refuses(random.Random(seed))

    def _allocator_refuses(self, chance: random.Random) -> None:
        """Let every other attempt to give pages back fail."""

        def sometimes(*given: Any) -> None:
            if chance.random() < 0.5:
                self.facts["refused"] += 1
                raise RuntimeError("asked to refuse pages")
            pages.give_back(*given)

        lending.give_back = sometimes

    def text(self, length: int) -> list[int]:
        return [self.random.randrange(2, 4096) for _ in range(length)]

    def prompt(self, header: list[int]) -> list[int]:
        """A new session, or the next turn of one that has ended."""
        if self.told and self.random.random() < 0.3:
            self.facts["next_turns"] += 1
            return self.random.choice(self.told) + self.text(self.random.randint(3, 90))
        parts = header + self.text(self.random.choice([0, 64, self.random.randint(1, 200)]))
        for _ in range(self.random.randint(1, 2)):
            parts += self.random.choice(self.documents) + self.text(self.random.randint(1, 90))
        return parts + self.random.choice([[], *self.questions])

    def begin(self) -> None:
        """One batch: all of it is matched and runs before any of it is published.

        Requests of one batch may all compute the same new header, of which the tree keeps one. The
        next round of a long prompt may be among them.
        """
        fresh = self.text(self.random.randint(70, 200))
        header = self.random.choice([[], fresh, fresh, self.random.choice(self.headers)])
        room = REQUESTS - 1 - len(self.running)
        rounds = [self.admit(header) for _ in range(min(self.random.randint(1, 3), room))]
        unread = [r for r in self.running if self.length(r) < len(r.full_untruncated_fill_ids)]
        if unread and self.random.random() < 0.5:
            going = self.random.choice(unread)
            self.running.remove(going)
            rounds.insert(0, self.next_round(going))
        self.run_batch(rounds)

    def run_batch(self, rounds: list[Any]) -> None:
        done = self.prefill(rounds)
        for request in done:
            self.publish(request)
        self.running += done

    def admit(self, header: list[int]) -> tuple[Any, int, int]:
        if self.retracted and self.random.random() < 0.5:
            request = self.retracted.pop()
            self.facts["again"] += 1
        else:
            ids = self.prompt(header)[: WIDTH - 600]
            tenant, exact = self.random.random() < 0.2, self.random.random() < 0.1
            request = self.request(ids, int(tenant), exact)
        prefix, end = self.match(request), len(request.full_untruncated_fill_ids)
        if end - prefix > 300 and self.random.random() < 0.4:
            end = self.random.randint(prefix + 100, end)
        return request, prefix, end

    def next_round(self, request: Any) -> tuple[Any, int, int]:
        done, prompt = self.length(request), len(request.full_untruncated_fill_ids)
        return request, done, self.random.choice([prompt, min(prompt, done + 70)])

    def go_on(self, request: Any) -> None:
        """The next round of a prompt, or some decode steps."""
        if self.length(request) < len(request.full_untruncated_fill_ids):
            self.running.remove(request)
            self.run_batch([self.next_round(request)])
            return
        if not self.grow(request, self.text(self.random.randint(1, 90))):
            self.end(request, 2)

    def end(self, request: Any, how: int) -> None:
        """0 finishes, 1 aborts, 2 retracts; a prompt that is not through cannot finish."""
        if self.length(request) < len(request.full_untruncated_fill_ids) and how == 0:
            how = 1
        self.facts["ends"][how] += 1
        self.running.remove(request)
        if how == 0:
            request.finished_reason = SimpleNamespace()
            self.told.append([*request.origin_input_ids, *request.output_ids])
        self.release(request, keep=how == 0)
        if how == 2:
            if self.held(request) is request:
                request.kv = None
            request.reset_for_retract()
            ids = [*request.origin_input_ids, *request.output_ids]
            request.full_untruncated_fill_ids = array("q", ids)
            self.retracted.append(request)

    def run(self, steps: int) -> dict[str, Any]:
        for _ in range(steps):
            choice = self.random.random()
            if len(self.running) < REQUESTS - 2 and choice < 0.45:
                self.begin()
            elif self.running and choice < 0.75:
                self.go_on(self.random.choice(self.running))
            elif self.running:
                self.end(self.random.choice(self.running), self.random.choice([0, 0, 1, 2]))
            self.check()
        while self.running:
            self.end(self.running[0], 0)
            self.check()
        while self.sharing._spare:
            self.sharing._give_back()
        assert self.cache.protected_size() == self.sharing.tokens == 0
        assert sorted(self.sharing._unused) == list(range(1, ENTRIES + 1))
        assert self.rows.available_size() == REQUESTS
        self.cache.evict(EvictParams(num_tokens=SIZE))
        assert self.pool.available_size() == SIZE
        return self.facts | {
            "broken": self.cache.mirror.broken,
            "borrowed": self.metrics.counts["borrowed_tokens"],
            "unborrowed": self.metrics.counts["unborrowed_spans"],
            "fallback": dict(self.metrics.fallbacks),
        }


def depths_behind_a_deep_prefix() -> list[int]:
    """Borrow behind a prefix of moved rows of moved rows, and find what was computed there."""
    parts = Fuzz(0)
    document, passage, lent, question = (parts.text(n) for n in (200, 150, 640, 130))

    def serve(ids: list[int]) -> None:
        request = parts.request(ids, 0, False)
        parts.run_batch([(request, parts.match(request), len(ids))])
        parts.end(request, 0)

    serve(parts.text(70) + document + parts.text(10))
    serve(parts.text(70) + lent + parts.text(10))
    serve(parts.text(90) + document + passage + parts.text(5))
    prefix = parts.text(75) + passage + parts.text(60)
    serve(prefix)
    serve(prefix + lent + question + parts.text(70))
    assert parts.facts["most_borrowed"] > 500
    last = parts.request(parts.text(80) + question + parts.text(9), 0, False)
    window = parts.found(last, parts.match(last), len(last.full_untruncated_fill_ids))
    return [span.depth for span in window.spans]


def main() -> None:
    print("DEPTHS", json.dumps(depths_behind_a_deep_prefix()), flush=True)
    for seed in range(3):
        print("FACTS", json.dumps(Fuzz(seed).run(int(sys.argv[1]))), flush=True)


if __name__ == "__main__":
    main()
