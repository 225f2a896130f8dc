"""The attention kernel's barriers as a discrete-event model: who may read which slot, and when.

Every warp is an agent, copies land after random delays, and each read checks what lies in its slot.
Knows the protocol of cuda/src/mla (helpers, scores and output); nothing of arithmetic or layouts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from reference.barrier_events import Agent, Barrier, ProtocolError, Ring, Simulation, Step

PAIRS, ROPES, TILE_PAIRS = 10, 2, 4


@dataclass
class Cta:
    """Shared memory of one CTA: what lies in it, and its barriers. `ps`: buffers of P."""

    ps: int

    pairs: list[object] = field(default_factory=lambda: [None] * PAIRS)
    ropes: list[object] = field(default_factory=lambda: [None] * ROPES)
    tiles: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)] * 2 * ROPES)
    item: int = -1
    queries: int = -1
    rotary: list[object] = field(default_factory=lambda: [None] * 2)  # of Q, by helper warp
    p: list[dict[int, object]] = field(init=False)
    sums: dict[int, int] = field(default_factory=dict)
    cleaned: dict[object, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.p = [{} for _ in range(self.ps)]
        self.pair_full = [Barrier(1) for _ in range(PAIRS)]
        self.pair_empty = [Barrier(4) for _ in range(PAIRS)]
        self.rope_full = [Barrier(1) for _ in range(ROPES)]
        self.rope_ready = [Barrier(2) for _ in range(ROPES)]
        self.rope_empty = [Barrier(4) for _ in range(ROPES)]
        self.tile_full = [Barrier(4) for _ in range(ROPES)]
        # With two buffers of P, both helper warps hand it over too: the tile's rows are clean.
        self.p_full = [Barrier(4 if self.ps == 1 else 6) for _ in range(self.ps)]
        self.p_empty = [Barrier(8) for _ in range(self.ps)]
        self.left_begun = [Barrier(4) for _ in range(self.ps)]
        self.q_full, self.q_empty, self.q_again = Barrier(1), Barrier(12), Barrier(1)
        self.sums_full, self.sums_empty = Barrier(4), Barrier(8)


def expect(found: object, wanted: object, who: str) -> None:
    """Raise when a slot does not hold what its reader came for."""
    if found != wanted:
        raise ProtocolError(f"{who} found {found}, wanted {wanted}")


def turned_by(unit: int, tile: int) -> int:
    """By what the queries stand turned for a tile; 0 as they came."""
    return 0 if tile < 0 else random.Random(97 * unit + tile // 2).choice([0, 0, 1, 2])


class Model(Simulation):
    """One CTA that walks through units of so many tiles each.

    `late`: P is handed over when half of the next S has been issued, as where CTAs share keys.
    Mutants: with `helper_waits` the helper warps follow the pairs' own barriers, and are lapped;
    with `early_queries` the slots of Q are given back while the registers are still being loaded;
    with `tiles_over` what a tile is gets written over while loads of it may be under way;
    with `early_rope`, which needs `late`, k_r goes back before the tile's last pair has been seen,
    so that helper warps that skip phases of `tile_full` may be two behind it;
    with `early_turn` queries are loaded again and turned while products read them;
    with `no_p_wait` P is written whoever still reads its buffer; with `no_clean_wait` it is handed
    over before foreign rows are zero.
    """

    def __init__(
        self,
        seed: int,
        units: list[int],
        *,
        late: bool = False,
        helper_waits: bool = False,
        early_queries: bool = False,
        tiles_over: bool = False,
        early_rope: bool = False,
        early_turn: bool = False,
        no_p_wait: bool = False,
        no_clean_wait: bool = False,
    ) -> None:
        super().__init__(seed)
        self.units, self.late = units, late
        self.helper_waits, self.early_queries = helper_waits, early_queries
        self.tiles_over = tiles_over
        self.early_rope, self.early_turn = early_rope, early_turn
        self.no_p_wait, self.no_clean_wait = no_p_wait, no_clean_wait
        self.cta = Cta(ps=2 if late else 1)
        if no_clean_wait:
            self.cta.p_full = [Barrier(4) for _ in range(self.cta.ps)]
        self.query_pairs = 3 if late else 2
        self.reloads = [0, 0]

    def copy(self, barrier: Barrier, put: Callable[[], object]) -> None:
        """Start one TMA copy: it lands, and says so, after a while."""

        def land() -> None:
            put()
            barrier.land(1)

        late = 8.0 * (self.random.random() < 0.1)  # now and then one that waits for memory
        self.later(0.5 + self.random.random() + self.delay(0.5) + late, land)

    # ---- helpers

    def key_warp(self) -> Agent:
        """Load queries of each unit and its tiles; k_r slabs too unless P is handed over late."""
        pairs, ropes = Ring(PAIRS), Ring(ROPES)
        for unit, count in enumerate(self.units):
            for pair in range(self.query_pairs if count else 0):
                yield from self._load_pair(pairs, ("Q", unit, pair))
            for tile in range(count):
                if not self.late:
                    yield from self._load_rope(ropes, unit, tile)
                for pair in range(TILE_PAIRS):
                    yield from self._load_pair(pairs, ("K", unit, tile, pair))

    def _tile_at(self, ropes: Ring) -> int:
        """Where it stands what goes with a k_r slab: beside what the slot's next tile is."""
        return ropes.slot if self.tiles_over else ropes.phase * ROPES + ropes.slot

    def _load_rope(self, ropes: Ring, unit: int, tile: int) -> Iterator[Step]:
        cta = self.cta
        yield "wait", cta.rope_empty[ropes.slot], ropes.phase ^ 1
        cta.tiles[self._tile_at(ropes)] = (unit, tile)
        cta.rope_full[ropes.slot].arrive(1)
        put = partial(cta.ropes.__setitem__, ropes.slot, (unit, tile))
        self.copy(cta.rope_full[ropes.slot], put)
        ropes.advance()

    def _load_pair(self, ring: Ring, tag: object) -> Iterator[Step]:
        cta, slot = self.cta, ring.slot
        yield "wait", cta.pair_empty[slot], ring.phase ^ 1
        cta.pair_full[slot].arrive(1)
        self.copy(cta.pair_full[slot], partial(cta.pairs.__setitem__, slot, tag))
        ring.advance()

    def query_warp(self) -> Agent:
        """Describe each unit, load the resident slabs of Q and, for a late P, its k_r slabs."""
        cta, ropes = self.cta, Ring(ROPES)
        for unit, count in enumerate(self.units):
            yield "wait", cta.q_empty, (unit & 1) ^ 1
            cta.item, cta.queries = unit, -1
            cta.q_full.arrive(1 if count else 0)
            if count:
                self.copy(cta.q_full, partial(self._put_queries, unit))
            for tile in range(count if self.late else 0):
                yield from self._load_rope(ropes, unit, tile)

    def _put_queries(self, unit: int) -> None:
        self.cta.queries, self.cta.rotary = unit, [(unit, 0)] * 2

    def _turn_queries(self, warp: int, unit: int, tile: int, before: Ring) -> Iterator[Step]:
        """Load the rotary slab of Q again unless it has just come, and turn this warp's part."""
        cta = self.cta
        if tile == 0:
            yield "wait", cta.q_full, unit & 1
        else:
            if not self.early_turn:
                yield "wait", cta.rope_empty[before.slot], before.phase
            if warp == 0:
                cta.q_again.arrive(1)
                self.copy(cta.q_again, partial(cta.rotary.__setitem__, slice(2), [(unit, 0)] * 2))
            yield "wait", cta.q_again, self.reloads[warp] & 1
            self.reloads[warp] += 1
        expect(cta.rotary[warp], (unit, 0), "helper")
        yield "sleep", self.delay(0.2), None
        cta.rotary[warp] = (unit, turned_by(unit, tile))

    def helper_warp(self, warp: int) -> Agent:
        """Turn k_r or Q and zero the rows that a tile does not own; a late P waits for that."""
        cta, pairs, ropes, ps = self.cta, Ring(PAIRS), Ring(ROPES), Ring(self.cta.ps)
        before = Ring(ROPES)
        for _ in range(sum(self.units)):
            yield "wait", cta.rope_full[ropes.slot], ropes.phase
            unit, tile = cta.tiles[self._tile_at(ropes)]
            expect(cta.ropes[ropes.slot], (unit, tile), "helper")
            for _ in range(self.query_pairs if tile == 0 else 0):
                if self.helper_waits:
                    yield "wait", cta.pair_full[pairs.slot], pairs.phase
                pairs.advance()
            if self.late and random.Random(1000 * unit - tile).random() < 0.5:  # it turns
                yield "wait", cta.p_full[ps.slot], ps.phase ^ 1
            yield "sleep", self.delay(0.2), None
            if self.late and turned_by(unit, tile) != turned_by(unit, tile - 1):
                yield from self._turn_queries(warp, unit, tile, before)
            before = Ring(ROPES, ropes.slot, ropes.phase)
            if not self.late:
                yield from self._clean(pairs, ropes, unit, tile)
            cta.rope_ready[ropes.slot].arrive()
            if self.late:
                yield from self._clean(pairs, ropes, unit, tile)
            if self.late and not self.no_clean_wait:
                yield "wait", cta.p_full[ps.slot], ps.phase ^ 1
                self._hand_over(ps)
            ropes.advance()

    def _clean(self, pairs: Ring, ropes: Ring, unit: int, tile: int) -> Iterator[Step]:
        cut = random.Random(1000 * unit + tile).random() < 0.6
        if cut and not self.helper_waits:
            yield "wait", self.cta.tile_full[ropes.slot], ropes.phase
        for pair in range(TILE_PAIRS):
            if self.helper_waits:
                yield "wait", self.cta.pair_full[pairs.slot], pairs.phase
            if cut:
                expect(self.cta.pairs[pairs.slot], ("K", unit, tile, pair), "helper")
            pairs.advance()
        yield "sleep", self.delay(0.6 if cut else 0.01), None
        self.cta.cleaned[unit, tile] = self.cta.cleaned.get((unit, tile), 0) + 1

    # ---- scores and output

    def scores_warp(self, warp: int) -> Agent:
        """Take Q into registers, then one S and one P per tile."""
        cta, pairs, ropes, ps = self.cta, Ring(PAIRS), Ring(ROPES), Ring(self.cta.ps)
        for unit, count in enumerate(self.units):
            yield "wait", cta.q_full, unit & 1
            queries = []
            for pair in range(self.query_pairs if count else 0):
                yield "wait", cta.pair_full[pairs.slot], pairs.phase
                queries.append((pairs.slot, ("Q", unit, pair)))
                pairs.advance()
            for tile in range(count):
                if tile and not self.late:
                    self._hand_over(ps)
                for pair in range(TILE_PAIRS):
                    if pair == 0 and tile and self.late:
                        yield from self._store_p(ps, warp, (unit, tile - 1))
                    if pair == 2 and self.late:
                        yield "wait", cta.rope_ready[ropes.slot], ropes.phase
                        expect(cta.rotary, [(unit, turned_by(unit, tile))] * 2, "scores")
                    if pair == 3 and self.early_rope:
                        yield "sleep", self.delay(0.1), None
                        self._give_rope_back(unit, tile, Ring(ROPES, ropes.slot, ropes.phase))
                    yield "wait", cta.pair_full[pairs.slot], pairs.phase
                    if pair == 2 and tile and self.late:
                        self._hand_over(ps)
                    pairs.advance()
                    if pair == 0 and tile == 0:
                        yield from self._read_queries(queries)
                yield from self._finish_scores(unit, tile, pairs, ropes)
                if not self.late or tile == count - 1:
                    yield from self._store_p(ps, warp, (unit, tile))
            if count:
                self._hand_over(ps)
            expect(cta.item, unit, "scores")
            cta.q_empty.arrive()
            yield "wait", cta.sums_empty, (unit & 1) ^ 1
            cta.sums[warp] = unit
            cta.sums_full.arrive()

    def _read_queries(self, queries: list[tuple[int, object]]) -> Iterator[Step]:
        """Wait until the loads of Q are done; only then its slots may be given back."""
        for slot, _ in queries if self.early_queries else []:
            self.cta.pair_empty[slot].arrive()
        yield "sleep", self.delay(0.3), None
        for slot, wanted in queries:
            expect(self.cta.pairs[slot], wanted, "scores")
            if not self.early_queries:
                self.cta.pair_empty[slot].arrive()

    def _store_p(self, ps: Ring, warp: int, tile: tuple[int, int]) -> Iterator[Step]:
        if not self.no_p_wait:
            yield "wait", self.cta.p_empty[ps.slot], ps.phase ^ 1
        self.cta.p[ps.slot][warp] = tile

    def _hand_over(self, ps: Ring) -> None:
        self.cta.p_full[ps.slot].arrive()
        ps.advance()

    def _finish_scores(self, unit: int, tile: int, pairs: Ring, ropes: Ring) -> Iterator[Step]:
        cta = self.cta
        cta.tile_full[ropes.slot].arrive()
        if not self.late:
            yield "wait", cta.rope_ready[ropes.slot], ropes.phase
        yield "sleep", 0.7 + self.delay(0.4), None
        at = self._tile_at(ropes)
        if self.early_rope:
            ropes.advance()
        elif self.late:  # k_r goes back before the last pairs have been multiplied
            self._give_rope_back(unit, tile, ropes)
            yield "sleep", self.delay(0.2), None
        for pair in range(TILE_PAIRS):
            slot = (pairs.slot + pair - TILE_PAIRS) % PAIRS
            expect(cta.pairs[slot], ("K", unit, tile, pair), "scores")
        expect(cta.queries, unit, "scores")
        if not self.late:
            self._give_rope_back(unit, tile, ropes)
        yield "sleep", 0.3 + self.delay(0.1), None
        expect(cta.tiles[at], (unit, tile), "scores")  # loads that the arrival did not wait for

    def _give_rope_back(self, unit: int, tile: int, ropes: Ring) -> None:
        expect(self.cta.ropes[ropes.slot], (unit, tile), "scores")
        if self.late:
            expect(self.cta.rotary, [(unit, turned_by(unit, tile))] * 2, "scores")
        self.cta.rope_empty[ropes.slot].arrive()
        ropes.advance()

    def output_warp(self, half: int, warp: int) -> Agent:
        """Multiply P with two pairs of every tile and give each pair back."""
        cta, pairs, ps = self.cta, Ring(PAIRS), Ring(self.cta.ps)
        pairs.advance(2 * half)
        for unit, count in enumerate(self.units):
            yield "wait", cta.q_full, unit & 1
            expect(cta.item, unit, "output")
            cta.q_empty.arrive()
            if count:
                pairs.advance(self.query_pairs)
            for tile in range(count):
                yield "wait", cta.p_full[ps.slot], ps.phase
                if self.late and half == 1:
                    yield "wait", cta.left_begun[ps.slot], ps.phase
                expect(cta.p[ps.slot][warp], (unit, tile), "output")
                expect(cta.cleaned.get((unit, tile)), 2, "output")
                if self.late and half == 0:
                    cta.left_begun[ps.slot].arrive()
                for pair in (2 * half, 2 * half + 1):
                    yield "sleep", 0.3 + self.delay(0.1), None
                    expect(cta.pairs[pairs.slot], ("K", unit, tile, pair), "output")
                    cta.pair_empty[pairs.slot].arrive()
                    pairs.advance()
                expect(cta.p[ps.slot][warp], (unit, tile), "output")
                cta.p_empty[ps.slot].arrive()
                ps.advance()
                pairs.advance(TILE_PAIRS - 2)
            yield "wait", cta.sums_full, unit & 1
            expect(cta.sums[warp], unit, "output")
            cta.sums_empty.arrive()
            yield "sleep", self.delay(1.5), None

    # ---- time

    def agents(self) -> list[Agent]:
        """All warps of the CTA."""
        warps: list[Agent] = [self.key_warp(), self.query_warp()]
        warps += [self.helper_warp(warp) for warp in range(2)]
        warps += [self.scores_warp(warp) for warp in range(4)]
        warps += [self.output_warp(half, warp) for half in range(2) for warp in range(4)]
        return warps
