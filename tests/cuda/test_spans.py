"""The kernel that writes what a plan knows of tokens, against plain torch on the same GPU."""

from types import SimpleNamespace

import pytest
import torch
from irminsul.errors import InvalidParams
from irminsul.integrations.sglang.batch import numbers
from irminsul.integrations.sglang.spans import Span, Window
from irminsul.native.spans import can_write, write_spans

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


def windows_of(spans: int, longest: int, seed: int) -> list[Window]:
    """Three requests with `spans` moved runs each, of nodes of two slots more than are used."""
    draw = torch.Generator().manual_seed(seed)

    def length(most: int) -> int:
        return int(torch.randint(1, most + 1, (), generator=draw))

    made = []
    for start in (0, 17, 4096):
        position, found = start, []
        for index in range(spans):
            counts = [length(longest) for _ in range(1 + index % 3)]
            nodes = [
                SimpleNamespace(value=torch.randint(2**31, (n + 2,), device=CUDA)) for n in counts
            ]
            rows = tuple((node, 1, n) for node, n in zip(nodes, counts, strict=True))
            low = position + length(70)
            position = low + sum(counts)
            found.append(Span(low, position, low - 5000, 0, 0, rows))
        made.append(Window(None, start, position + length(70), found))
    return made


@pytest.mark.parametrize(("spans", "longest"), [(0, 1), (1, 30_000), (9, 3000), (200, 40)])
def test_equal_to_plain_torch(spans: int, longest: int) -> None:
    windows = windows_of(spans, longest, spans)
    count = sum(window.end - window.start for window in windows)
    slots, ids = torch.randint(2**31, (count,), device=CUDA), torch.arange(count).pin_memory()
    holes = [window.holes() for window in windows]
    moved, gaps = numbers.placed(windows, slots)
    wanted = numbers.made_of(windows, holes, moved, gaps, ids)
    assert can_write(slots)
    made = numbers.written(windows, holes, slots, ids)
    assert made is not None
    assert made.inputs.is_pinned()
    for name, value in made._asdict().items():
        assert torch.equal(value, getattr(wanted, name)), name


def test_a_run_beyond_the_tokens_is_refused() -> None:
    from array import array

    slots = torch.arange(8, device=CUDA)
    with pytest.raises(InvalidParams, match="run 0"):
        write_spans(array("q", (slots.data_ptr(), 0, 1, 8, 0)), 8, 0, slots)
