"""What all connections of a gateway share: room for octets, and what is said of bad ones."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from math import inf
from typing import Final

_log: Final = logging.getLogger("dafka.kafka")

SAY_AGAIN_S: Final = 10.0
"""How often bad requests are spoken of: anybody may send thousands in a second."""


class Room:
    """Room for octets in flight: who finds none gets it when there is some, in order of asking."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.taken_bytes = 0
        self._waiting: dict[Callable[[], object], int] = {}

    def take(self, size_bytes: int, when_there: Callable[[], object]) -> bool:
        """Whether there is room now.  If not, ``when_there`` is called with the room taken."""
        if not self._waiting and self._fits(size_bytes):
            self.taken_bytes += size_bytes
            return True
        self._waiting[when_there] = size_bytes
        return False

    def wait_no_more(self, when_there: Callable[[], object]) -> None:
        """Takes no room for this one; those behind it may have it."""
        self._waiting.pop(when_there, None)
        self.give_back(0)

    def add(self, size_bytes: int) -> None:
        """Takes room without asking, for what is in memory already."""
        self.taken_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Gives room to those who wait."""
        self.taken_bytes -= size_bytes
        while self._waiting:
            when_there, wanted_bytes = next(iter(self._waiting.items()))
            if not self._fits(wanted_bytes):
                break
            del self._waiting[when_there]
            self.taken_bytes += wanted_bytes
            when_there()

    def _fits(self, size_bytes: int) -> bool:
        return not self.taken_bytes or self.taken_bytes + size_bytes <= self.size_bytes


class Complaints:
    """Counts what is wrong with requests and connections, and logs it now and then."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """How often, by kind."""
        self._said: dict[object, tuple[float, int]] = {}  # when, and how many since then

    def note(
        self,
        kind: str,
        host: str,
        why: str,
        *,
        of: object = None,
        again_s: float = SAY_AGAIN_S,
    ) -> None:
        """Counts one; ``kind`` is one of a few sentences, ``why`` may come from the client.

        Args:
            of: one of a few of whom it is said each time on its own.
            again_s: how often that is.
        """
        self.counts[kind] += 1
        now = time.monotonic()
        said_at, count = self._said.get((kind, of), (-inf, 0))
        if now - said_at < again_s:
            self._said[kind, of] = said_at, count + 1
            return
        self._said[kind, of] = now, 0
        _log.warning("Kafka: %s %d times; the last one from %s: %s", kind, count + 1, host, why)
