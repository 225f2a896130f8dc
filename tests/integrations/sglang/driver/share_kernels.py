"""The Triton form of borrowed tiles against the one in plain torch.

Run by pytest in a process of its own, with TRITON_INTERPRET=1 where there is no GPU: Triton decides
when it is imported whether it compiles or interprets.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import torch
from irminsul.integrations.sglang.share.kernels import loan_tiles
from irminsul.integrations.sglang.share.tables import Entry

sys.path.insert(0, str(Path(__file__).parents[1]))
from test_share_tables import WIDTH, Request, listed, table

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
REQUESTS = 5


def test_both_forms_give_the_same_tiles() -> None:
    chance = random.Random(11)
    torch.manual_seed(11)
    for _ in range(12):
        requests = [Request(chance, chance.randint(0, 4)) for _ in range(REQUESTS)]
        slots = torch.stack([request.slots for request in requests]).to(DEVICE)
        tables = table(slots, entries=REQUESTS)
        borrowers = [
            Entry(row, REQUESTS - row, request.to(DEVICE))
            for row, request in enumerate(requests)
            if request.borrowed
        ]
        if borrowers:
            tables.write(tables.prepare(borrowers))
        rows = chance.randint(1, 9)
        sequences = torch.tensor([chance.randrange(REQUESTS) for _ in range(rows)]).to(DEVICE)
        # Hole rows end anywhere, decode rows behind all that is borrowed.
        lengths = torch.tensor([chance.randint(0, WIDTH) for _ in range(rows)]).to(DEVICE)
        most = WIDTH // 64 + 20
        wanted = tables.compose_readably(slots, sequences, lengths, most)
        stored = tables._tiles, tables._count, tables._end
        found = loan_tiles(slots, sequences, lengths, tables._entry_of, stored, most)
        assert torch.equal(found.start, wanted.start)
        assert torch.equal(found.count, wanted.count)
        assert all(listed(found, row) == listed(wanted, row) for row in range(rows))
