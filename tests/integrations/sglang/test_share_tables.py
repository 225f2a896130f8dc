"""Borrowed pages -> tiles: the form for graphs against the readable one, on random requests."""

from __future__ import annotations

import random
from dataclasses import replace

import torch
from irminsul.attention import PAGE_SIZE, KeySpan, TileTable, tiles_from_spans
from irminsul.integrations.sglang.share.tables import Borrowed, Entry, LoanTables, Piece, numbers_of
from irminsul.rotation import RopeTable

WIDTH = 40 * PAGE_SIZE


def table(slots: torch.Tensor, entries: int = 3) -> LoanTables:
    angles = torch.cat([torch.ones(WIDTH, 32), torch.zeros(WIDTH, 32)], dim=1).to(slots.device)
    return LoanTables(entries, slots, RopeTable(angles, interleaved=True))


def listed(tiles: TileTable, row: int) -> list[tuple[int, ...]]:
    first, count = int(tiles.start[row]), int(tiles.count[row])
    return [tuple(tile) for tile in tiles.tiles[first : first + count].tolist()]


class Request:
    """A row of slots of its own, with random runs of it borrowed from random pages."""

    def __init__(self, chance: random.Random, runs: int) -> None:
        pages = 100 + torch.randperm(1000)[: WIDTH // PAGE_SIZE]
        self.slots = (pages[:, None] * PAGE_SIZE + torch.arange(PAGE_SIZE)).flatten().int()
        self.borrowed, page = [], 0
        for _ in range(runs):
            start = page + chance.randint(1, 4)
            page = start + chance.randint(1, 5)
            self.borrowed.append(self._run(chance, start * PAGE_SIZE, page * PAGE_SIZE))

    def _run(self, chance: random.Random, start: int, end: int) -> Borrowed:
        pieces, left = [], end - start
        first = chance.randrange(PAGE_SIZE)
        while left:
            # A lender's node ends with a page; the next one begins with one.
            most = chance.randint(1, 4) * PAGE_SIZE - first
            count = min(left, most)
            needed = -(-(first + count) // PAGE_SIZE)
            heads = (2000 + torch.randperm(500)[:needed]) * PAGE_SIZE + 9
            pieces.append(Piece(heads, first, count))
            left, first = left - count, 0
        return Borrowed(start, end, chance.randint(-900, 900), tuple(pieces))

    def to(self, device: torch.device) -> list[Borrowed]:
        """Return what is borrowed, with its pages on a device."""
        return [
            replace(run, pieces=tuple(replace(p, heads=p.heads.to(device)) for p in run.pieces))
            for run in self.borrowed
        ]

    def spans(self, length: int) -> list[KeySpan]:
        """Say the same as slots and deltas, token by token."""
        spans, position = [], 0
        for run in [*self.borrowed, Borrowed(WIDTH, WIDTH, 0, ())]:
            spans.append(KeySpan(self.slots[position : run.start], position))
            position = run.start
            for piece in run.pieces:
                pages = piece.heads // PAGE_SIZE
                slots = (pages[:, None] * PAGE_SIZE + torch.arange(PAGE_SIZE)).flatten()
                slots = slots[piece.first : piece.first + piece.count]
                spans.append(KeySpan(slots, position, run.delta))
                position += piece.count
        cut = [
            KeySpan(span.slots[: max(0, length - span.position)], span.position, span.delta)
            for span in spans
        ]
        return [span for span in cut if len(span.slots)]


def test_rows_of_every_length_have_the_tiles_of_their_spans() -> None:
    chance = random.Random(3)
    torch.manual_seed(3)
    for _ in range(40):
        requests = [Request(chance, chance.randint(0, 3)) for _ in range(4)]
        slots = torch.stack([request.slots for request in requests])
        tables, borrowers = table(slots, entries=4), []
        for row, request in enumerate(requests):
            if request.borrowed:
                # At borrowed positions stands nobody's slot.
                for run in request.borrowed:
                    slots[row, run.start : run.end] = 0
                borrowers.append(Entry(row, row + 1, request.borrowed))
        if borrowers:
            tables.write(tables.prepare(borrowers))
        sequences = torch.tensor([chance.randrange(4) for _ in range(6)])
        lengths = torch.tensor([chance.randint(0, WIDTH) for _ in range(6)], dtype=torch.int32)
        found = tables.compose(slots[:, : int(lengths.max())], sequences, lengths)
        for row, (owner, length) in enumerate(zip(sequences, lengths.tolist(), strict=True)):
            wanted = tiles_from_spans([requests[int(owner)].spans(length)])
            assert listed(found, row) == listed(wanted, 0)


def test_own_pages_follow_the_engine_s_table() -> None:
    """It exchanges a request's first pages for those of its tree, while the request runs."""
    chance = random.Random(7)
    torch.manual_seed(7)
    request = Request(chance, 2)
    slots = request.slots[None].clone()
    tables = table(slots)
    tables.write(tables.prepare([Entry(0, 1, request.borrowed)]))
    for run in request.borrowed:
        slots[0, run.start : run.end] = 0
    first = request.borrowed[0].start
    slots[0, :first] = request.slots[:first] = 700 * PAGE_SIZE + torch.arange(first).int()
    lengths = torch.tensor([WIDTH - 10], dtype=torch.int32)
    found = tables.compose(slots, torch.tensor([0]), lengths)
    assert listed(found, 0) == listed(tiles_from_spans([request.spans(WIDTH - 10)]), 0)


def test_an_entry_that_ends_leaves_own_pages_alone() -> None:
    chance = random.Random(5)
    request = Request(chance, 2)
    slots = request.slots[None]
    tables = table(slots)
    tables.write(tables.prepare([Entry(0, 2, request.borrowed)]))
    tables.forget(0)
    lengths = torch.tensor([200], dtype=torch.int32)
    found = listed(tables.compose(slots, torch.tensor([0]), lengths), 0)
    pages = (request.slots[: 4 * PAGE_SIZE : PAGE_SIZE] // PAGE_SIZE).tolist()
    assert [tile[0] for tile in found] == pages
    assert [tile[3] for tile in found] == [0, 64, 128, 192]
    assert all(tile[2] == 0 for tile in found)
    assert found[-1][1] == 8 << 16


def test_a_run_at_an_offset_costs_one_tile_more() -> None:
    heads = torch.arange(5) * PAGE_SIZE
    at = [Borrowed(64, 64 + 256, 7, (Piece(heads[: 4 + (n > 0)], n, 256),)) for n in (0, 1, 63)]
    assert [run.cuts for run in at] == [0, 1, 1]
    assert [Entry(0, 1, [run]).tiles for run in at] == [5, 6, 6]
    assert [numbers_of([Entry(0, 1, [run])], 9).shape[1] for run in at] == [5, 6, 6]
