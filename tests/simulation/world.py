"""One clock, one queue of events and one source of chance for everything in a simulation."""

import hashlib
import heapq
import random
from collections import Counter
from collections.abc import Callable
from itertools import count


class SimulationError(AssertionError):
    """A checker has found something that must never be."""


class World:
    """Time passes from event to event, and all chance comes from the seed.

    So the same seed gives the same trace, whatever the machine and however busy.
    """

    def __init__(self, seed: int, write: Callable[[str], object] | None = None) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.faults: Counter[str] = Counter()  # number of injected faults, by kind
        self.sent: Counter[str] = Counter()  # messages of byzantine peers, by kind
        self.refused: Counter[str] = Counter()  # refused messages of byzantine peers, by kind
        self.steps = 0
        self._failure: SimulationError | None = None
        self._write = write
        self._hash = hashlib.blake2b(digest_size=16)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        """Call ``action`` at a time, after earlier actions for that time."""
        heapq.heappush(self._events, (max(time_s, self.now), next(self._numbers), action))

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self.at(self.now + delay_s, action)

    def run_until(self, end_s: float) -> None:
        while self._events and self._events[0][0] <= end_s:
            self.now, _, action = heapq.heappop(self._events)
            self.steps += 1
            action()
            if self._failure is not None:  # a future keeps what its callbacks raise to itself
                raise self._failure
        self.now = end_s

    def note(self, who: str, what: str) -> None:
        line = f"{self.now:10.5f}  {who:<12} {what}"
        self._hash.update(line.encode("utf-8", "backslashreplace"))
        if self._write is not None:
            self._write(line)

    def fault(self, kind: str, who: str, what: str = "") -> None:
        """Counts an injected fault, and notes it."""
        self.faults[kind] += 1
        self.note(who, f"! {kind} {what}")

    def fail(self, who: str, why: str) -> None:
        """Ends the simulation.

        Raises:
            SimulationError: always.
        """
        self.note(who, f"FAILED: {why}")
        self._failure = SimulationError(f"at {self.now:.5f} s, {who}: {why}")
        raise self._failure

    @property
    def trace_hash(self) -> str:
        return self._hash.hexdigest()

    # -- chance ----------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.random.random() < probability

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self.random.random()

    def address(self) -> str:
        return f"{self.random.getrandbits(128):032X}"
