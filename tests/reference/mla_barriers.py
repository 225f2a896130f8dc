"""The attention kernel's barriers as a discrete-event model: who may read which slot, and when.

Every warp is an agent, copies land after random delays, and each read checks what lies in its slot.
Knows the protocol of cuda/src/mla (helpers.cuh, attention.cuh); nothing of arithmetic or layouts.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial

PAIRS, ROPES, TILE_PAIRS, QUERY_PAIRS = 10, 2, 4, 2

Step = tuple[str, object, object]  # ("wait", barrier, parity) or ("sleep", seconds, None)
Agent = Generator[Step, None, None]


class ProtocolError(Exception):
    """A slot held something else than its reader expected, or nobody could go on."""


class Barrier:
    """An mbarrier: a phase ends when all arrivals and all announced bytes are there."""

    def __init__(self, arrivals: int) -> None:
        self.arrivals = self.pending = arrivals
        self.bytes = self.phase = 0

    def arrive(self, announced: int = 0) -> None:
        """Arrive once, after announcing bytes of copies."""
        self.pending -= 1
        self.bytes += announced
        if self.pending < 0:
            raise ProtocolError("more arrivals than a phase takes")
        self._turn()

    def land(self, count: int) -> None:
        """Take note of copied bytes; they may land before they are announced."""
        self.bytes -= count
        self._turn()

    def _turn(self) -> None:
        if self.pending == 0 and self.bytes == 0:
            self.phase += 1
            self.pending = self.arrivals

    def passed(self, parity: int) -> bool:
        """Tell what try_wait.parity tells: the current phase has the other parity."""
        return self.phase & 1 != parity


@dataclass
class Ring:
    """A slot of a ring and the parity of its next phase."""

    slots: int
    slot: int = 0
    phase: int = 0

    def advance(self, by: int = 1) -> None:
        """Move on, turning the parity at the ring's end."""
        self.slot += by
        if self.slot >= self.slots:
            self.slot -= self.slots
            self.phase ^= 1


@dataclass
class Cta:
    """Shared memory of one CTA: what lies in it, and its barriers."""

    cluster: int
    pairs: list[list[object]] = field(default_factory=lambda: [[None, None] for _ in range(PAIRS)])
    tiles: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)] * ROPES)
    item: int = -1
    queries: int = -1
    p: dict[int, tuple[int, int]] = field(default_factory=dict)
    sums: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shared = 4 * self.cluster
        self.pair_full = [Barrier(1) for _ in range(PAIRS)]
        self.pair_empty = [Barrier(shared) for _ in range(PAIRS)]
        self.rope_full = [Barrier(1) for _ in range(ROPES)]
        self.rope_ready = [Barrier(2) for _ in range(ROPES)]
        self.rope_empty = [Barrier(shared) for _ in range(ROPES)]
        self.tile_full = [Barrier(4) for _ in range(ROPES)]
        self.p_full, self.p_empty = Barrier(4), Barrier(8)
        self.q_full, self.q_empty = Barrier(1), Barrier(12)
        self.sums_full, self.sums_empty = Barrier(4), Barrier(8)


def expect(found: object, wanted: object, who: str) -> None:
    """Raise when a slot does not hold what its reader came for."""
    if found != wanted:
        raise ProtocolError(f"{who} found {found}, wanted {wanted}")


class Model:
    """One worker: `cluster` CTAs that walk through units of so many tiles each.

    `early_queries` is a mutant: the slots of Q are given back while they are still being read.
    """

    def __init__(
        self,
        seed: int,
        cluster: int,
        units: list[int],
        *,
        early_queries: bool = False,
    ) -> None:
        self.random = random.Random(seed)
        self.speed = self.random.choice([0.3, 1.0, 3.0])
        self.units, self.early_queries = units, early_queries
        self.ctas = [Cta(cluster) for _ in range(cluster)]
        self.now, self.order = 0.0, 0
        self.events: list[tuple[float, int, Callable[[], object]]] = []

    def delay(self, mean: float) -> float:
        """Draw a random time."""
        return self.random.expovariate(1 / (mean * self.speed))

    def later(self, delay: float, event: Callable[[], object]) -> None:
        """Run `event` after `delay`."""
        self.order += 1
        heapq.heappush(self.events, (self.now + delay, self.order, event))

    def copy(
        self, ctas: list[Cta], full: str, slot: int | None, put: Callable[[Cta], object]
    ) -> None:
        """Start one TMA copy: it lands in each CTA at a time of its own."""

        def land(cta: Cta) -> None:
            put(cta)
            barrier = getattr(cta, full)
            (barrier if slot is None else barrier[slot]).land(1)

        base = 0.5 + self.random.random() + self.delay(0.5)
        for cta in ctas:
            self.later(base * (0.9 + 0.2 * self.random.random()), partial(land, cta))

    def release(self, empty: str, slot: int) -> None:
        """Arrive at the same barrier of every CTA."""
        for cta in self.ctas:
            barrier = getattr(cta, empty)[slot]
            self.later(0.2 * self.random.random(), barrier.arrive)

    # ---- helpers

    def key_warp(self, cta: Cta, rank: int) -> Agent:
        """Load queries of each unit and its tiles through the ring of pairs."""
        pairs, ropes = Ring(PAIRS), Ring(ROPES)
        halves = [0, 1] if len(self.ctas) == 1 else [rank]
        for unit, count in enumerate(self.units):
            if count == 0:
                continue
            for pair in range(QUERY_PAIRS):
                yield from self._load([cta], cta, pairs, [0, 1], ("Q", unit, pair))
            for tile in range(count):
                yield "wait", cta.rope_empty[ropes.slot], ropes.phase ^ 1
                cta.tiles[ropes.slot] = (unit, tile)
                cta.rope_full[ropes.slot].arrive(len(self.ctas))
                self.copy(self.ctas, "rope_full", ropes.slot, lambda _: None)
                ropes.advance()
                for pair in range(TILE_PAIRS):
                    wanted = ("K", unit, tile, pair)
                    yield from self._load(self.ctas, cta, pairs, halves, wanted)

    def _load(
        self, ctas: list[Cta], cta: Cta, ring: Ring, halves: list[int], tag: object
    ) -> Iterator[Step]:
        slot = ring.slot
        yield "wait", cta.pair_empty[slot], ring.phase ^ 1
        cta.pair_full[slot].arrive(2)
        for half in halves:

            def put(target: Cta, half: int = half) -> None:
                target.pairs[slot][half] = tag

            self.copy(ctas, "pair_full", slot, put)
        ring.advance()

    def query_warp(self, cta: Cta) -> Agent:
        """Load the resident slabs of Q and describe each unit."""
        for unit, count in enumerate(self.units):
            yield "wait", cta.q_empty, (unit & 1) ^ 1
            cta.item, cta.queries = unit, -1
            cta.q_full.arrive(1 if count else 0)
            if count:
                self.copy(
                    [cta], "q_full", None, partial(lambda u, c: setattr(c, "queries", u), unit)
                )

    def helper_warp(self, cta: Cta) -> Agent:
        """Turn k_r and zero the rows that a tile does not own."""
        pairs, ropes = Ring(PAIRS), Ring(ROPES)
        for _ in range(sum(self.units)):
            yield "wait", cta.rope_full[ropes.slot], ropes.phase
            unit, tile = cta.tiles[ropes.slot]
            cut = random.Random(1000 * unit + tile).random() < 0.6
            if tile == 0:
                pairs.advance(QUERY_PAIRS)
            if cut:
                yield "wait", cta.tile_full[ropes.slot], ropes.phase
            for pair in range(TILE_PAIRS):
                if cut:
                    expect(cta.pairs[pairs.slot], [("K", unit, tile, pair)] * 2, "helper")
                pairs.advance()
            yield "sleep", self.delay(0.2), None
            cta.rope_ready[ropes.slot].arrive()
            ropes.advance()

    # ---- scores and output

    def scores_warp(self, cta: Cta, warp: int) -> Agent:
        """Take Q into registers, then one S and one P per tile."""
        pairs, ropes, p_phase = Ring(PAIRS), Ring(ROPES), 0
        for unit, count in enumerate(self.units):
            yield "wait", cta.q_full, unit & 1
            queries: list[tuple[int, object]] = []
            for pair in range(QUERY_PAIRS if count else 0):
                yield "wait", cta.pair_full[pairs.slot], pairs.phase
                queries.append((pairs.slot, ("Q", unit, pair)))
                pairs.advance()
            if self.early_queries:
                self._release_queries(queries)
            for tile in range(count):
                yield from self._score(cta, unit, tile, pairs, ropes, queries)
                queries = []
                yield "wait", cta.p_empty, p_phase ^ 1
                p_phase ^= 1
                cta.p[warp] = (unit, tile)
                cta.p_full.arrive()
            expect(cta.item, unit, "scores")
            cta.q_empty.arrive()
            yield "wait", cta.sums_empty, (unit & 1) ^ 1
            cta.sums[warp] = unit
            cta.sums_full.arrive()

    def _release_queries(self, queries: list[tuple[int, object]]) -> None:
        for slot, _ in queries:
            self.release("pair_empty", slot)

    def _score(
        self,
        cta: Cta,
        unit: int,
        tile: int,
        pairs: Ring,
        ropes: Ring,
        queries: list[tuple[int, object]],
    ) -> Iterator[Step]:
        slots = []
        for pair in range(TILE_PAIRS):
            yield "wait", cta.pair_full[pairs.slot], pairs.phase
            slots.append((pairs.slot, ("K", unit, tile, pair)))
            pairs.advance()
            if pair == 0 and queries:  # the products wait for the loads of Q, arrivals do not
                yield "sleep", self.delay(0.3), None
                for slot, wanted in queries:
                    expect(cta.pairs[slot], [wanted] * 2, "scores")
        cta.tile_full[ropes.slot].arrive()
        yield "wait", cta.rope_ready[ropes.slot], ropes.phase
        if not self.early_queries:
            self._release_queries(queries)
        yield "sleep", 0.7 + self.delay(0.4), None
        for slot, wanted in slots:
            expect(cta.pairs[slot], [wanted] * 2, "scores")
        expect(cta.queries, unit, "scores")
        self.release("rope_empty", ropes.slot)
        ropes.advance()
        yield "sleep", 0.3 + self.delay(0.1), None

    def output_warp(self, cta: Cta, half: int, warp: int) -> Agent:
        """Multiply P with two pairs of every tile and give each pair back."""
        pairs, p_phase = Ring(PAIRS), 0
        pairs.advance(2 * half)
        for unit, count in enumerate(self.units):
            yield "wait", cta.q_full, unit & 1
            expect(cta.item, unit, "output")
            cta.q_empty.arrive()
            if count:
                pairs.advance(QUERY_PAIRS)
            for tile in range(count):
                yield "wait", cta.p_full, p_phase
                p_phase ^= 1
                expect(cta.p[warp], (unit, tile), "output")
                for pair in (2 * half, 2 * half + 1):
                    yield "sleep", 0.3 + self.delay(0.1), None
                    expect(cta.pairs[pairs.slot], [("K", unit, tile, pair)] * 2, "output")
                    self.release("pair_empty", pairs.slot)
                    pairs.advance()
                expect(cta.p[warp], (unit, tile), "output")
                cta.p_empty.arrive()
                pairs.advance(TILE_PAIRS - 2)
            yield "wait", cta.sums_full, unit & 1
            expect(cta.sums[warp], unit, "output")
            cta.sums_empty.arrive()
            yield "sleep", self.delay(1.5), None

    # ---- time

    def agents(self) -> list[Agent]:
        """All warps of all CTAs."""
        warps: list[Agent] = []
        for rank, cta in enumerate(self.ctas):
            warps += [self.key_warp(cta, rank), self.query_warp(cta)]
            warps += [self.helper_warp(cta) for _ in range(2)]
            warps += [self.scores_warp(cta, warp) for warp in range(4)]
            warps += [self.output_warp(cta, h, warp) for h in range(2) for warp in range(4)]
        return warps

    def run(self) -> None:
        """Let every warp finish, in a random order; raise `ProtocolError` at the first fault."""
        waiting: dict[int, tuple[Agent, Step]] = {
            i: (agent, ("sleep", 0.0, None)) for i, agent in enumerate(self.agents())
        }
        wake = dict.fromkeys(waiting, 0.0)
        while waiting:
            moved = True
            while moved:
                moved = False
                for i in self.random.sample(sorted(waiting), len(waiting)):
                    moved |= self._step(i, waiting, wake)
            asleep = [wake[i] for i, (_, step) in waiting.items() if step[0] == "sleep"]
            if not waiting:
                return
            if not asleep and not self.events:
                raise ProtocolError("deadlock")
            self.now = min([*asleep, *(time for time, _, _ in self.events[:1])])
            while self.events and self.events[0][0] <= self.now:
                heapq.heappop(self.events)[2]()

    def _step(self, i: int, waiting: dict[int, tuple[Agent, Step]], wake: dict[int, float]) -> bool:
        agent, (kind, what, parity) = waiting[i]
        if kind == "wait" and not what.passed(parity):  # type: ignore[attr-defined]
            return False
        if kind == "sleep" and wake[i] > self.now:
            return False
        try:
            step = next(agent)
        except StopIteration:
            del waiting[i]
            return True
        waiting[i] = agent, step
        if step[0] == "sleep":
            wake[i] = self.now + float(step[1])  # type: ignore[arg-type]
        return True
