"""Forwards of prefill batches -> what a token of prefill costs, for a cost model.

Knows SGLang's forward batch and CUDA events; must not know chunks or requests.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from irminsul.tiers import CostModel

__all__ = ["PrefillClock", "event"]

# A forward of fewer tokens says more about its overhead than about the price of a token.
_TIMED_TOKENS = 128


class PrefillClock:
    """Times prefills without waiting for them.

    Parameters
    ----------
    cost : CostModel
        Learns.
    on_gpu : bool
        Forwards run on a stream; ``stream`` is the one seen last.
    """

    def __init__(self, cost: CostModel, *, on_gpu: bool) -> None:
        self._cost = cost
        self._on_gpu = on_gpu
        self.stream: Any = None
        self._timed: deque[tuple[int, Any, Any]] = deque()

    @contextmanager
    def timing(self, forward_batch: Any) -> Iterator[None]:
        """Measure the forward inside, if it is a prefill."""
        if self._on_gpu:
            self.stream = torch.cuda.current_stream()
        tokens = int(getattr(forward_batch, "extend_num_tokens", None) or 0)
        if not forward_batch.forward_mode.is_extend() or tokens < _TIMED_TOKENS:
            yield
            return
        if not self._on_gpu:
            began = time.perf_counter()
            yield
            self._cost.computed(tokens, time.perf_counter() - began)
            return
        first, last = event(), event()
        first.record()
        yield
        last.record()
        self._timed.append((tokens, first, last))

    def learn(self) -> None:
        """Tell the cost model what is over by now."""
        while self._timed and self._timed[0][2].query():
            tokens, first, last = self._timed.popleft()
            self._cost.computed(tokens, first.elapsed_time(last) / 1e3)


def event() -> Any:
    """Return a CUDA event that takes the time."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
