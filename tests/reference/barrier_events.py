"""Agents that wait for mbarriers, as discrete events: each takes random times, in a random order.

Knows barriers and rings; nothing of what agents do.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass

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


class Simulation:
    """Agents that run side by side until all have finished."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.speed = self.random.choice([0.3, 1.0, 3.0])
        self.now, self.events, self.order = 0.0, [], 0

    def agents(self) -> list[Agent]:
        """All that run."""
        raise NotImplementedError

    def delay(self, mean: float) -> float:
        """Draw a random time."""
        return self.random.expovariate(1 / (mean * self.speed))

    def later(self, delay: float, event: Callable[[], object]) -> None:
        """Run `event` after `delay`."""
        self.order += 1
        heapq.heappush(self.events, (self.now + delay, self.order, event))

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
