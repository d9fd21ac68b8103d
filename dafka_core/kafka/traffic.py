"""What all connections of a gateway share: room for octets, and what is said of bad ones."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

_log: Final = logging.getLogger("dafka.kafka")

SAY_AGAIN_S: Final = 10.0
"""How often bad requests are spoken of: anybody may send thousands in a second."""


class Room:
    """Room for octets in flight: who gets none is called when there is some, in order of asking."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.taken_bytes = 0
        self._waiting: deque[tuple[int, Callable[[], bool]]] = deque()

    def take(self, size_bytes: int, when_there: Callable[[], bool]) -> bool:
        """Whether there is room now.  If not, ``when_there`` is called with the room taken.

        It returns whether it still wants it.
        """
        if not self._waiting and self._fits(size_bytes):
            self.taken_bytes += size_bytes
            return True
        self._waiting.append((size_bytes, when_there))
        return False

    def add(self, size_bytes: int) -> None:
        """Takes room without asking, for what is in memory already."""
        self.taken_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Gives room to those who wait."""
        self.taken_bytes -= size_bytes
        while self._waiting and self._fits(self._waiting[0][0]):
            wanted_bytes, when_there = self._waiting.popleft()
            self.taken_bytes += wanted_bytes
            if not when_there():
                self.taken_bytes -= wanted_bytes

    def _fits(self, size_bytes: int) -> bool:
        return not self.taken_bytes or self.taken_bytes + size_bytes <= self.size_bytes


class Complaints:
    """Counts what is wrong with requests and connections, and logs it now and then."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """How often, by kind."""
        self._said: dict[str, tuple[float, int]] = {}

    def note(self, kind: str, host: str, why: str) -> None:
        """Counts one; ``kind`` is one of a few sentences, ``why`` may come from the client."""
        self.counts[kind] += 1
        now, count = time.monotonic(), self.counts[kind]
        said_at, said = self._said.get(kind, (-SAY_AGAIN_S, 0))
        if now - said_at >= SAY_AGAIN_S:
            self._said[kind] = now, count
            _log.warning(
                "Kafka: %s %d times; the last one from %s: %s", kind, count - said, host, why
            )
