"""Throttles of what anybody can cause by the thousand: guessed passwords, and logs of refusals."""

from __future__ import annotations

import threading
import time
from ipaddress import ip_network
from typing import Final

from dafka_core.system.hosts import address_of, plain

MOST_WRONG: Final = 10
"""Wrong guesses of an address in a minute, after which none of it is looked at."""

MINUTE_S: Final = 60.0

MAX_ADDRESSES: Final = 10_000
"""Of which wrong guesses are counted; the one that was wrong first is forgotten."""


class Guesses:
    """Counts what was wrong by the address that it came from.  For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wrong: dict[str, tuple[int, float]] = {}

    def are_refused(self, address: str) -> bool:
        """Whether nothing that comes from there is looked at now, right or wrong."""
        with self._lock:
            return self._counted(guesser(address))[0] >= MOST_WRONG

    def add_wrong(self, address: str) -> int:
        """Counts one; how many that were within a minute."""
        whose = guesser(address)
        with self._lock:
            count, until = self._counted(whose)
            self._wrong.pop(whose, None)
            self._wrong[whose] = count + 1, until
            if len(self._wrong) > MAX_ADDRESSES:
                del self._wrong[next(iter(self._wrong))]
        return count + 1

    def _counted(self, whose: str) -> tuple[int, float]:
        now = time.monotonic()
        count, until = self._wrong.get(whose, (0, 0.0))
        return (count, until) if now < until else (0, now + MINUTE_S)


def guesser(address: str) -> str:
    """Of the newer protocol one user has as many addresses as it likes, of one network."""
    found = address_of(address.partition("%")[0])
    if found is None or found.version == 4:
        return plain(address)
    return str(ip_network((found, 64), strict=False))


SAY_AGAIN_S: Final = 60.0
"""How often the same refusal is said."""

MOST_SAID: Final = 1_000
"""Refusals that are said in that time; beyond these they are counted only."""


class LogThrottle:
    """Logs each message once a minute, and a limited number of them.  Thread-safe."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}  # in the order in which they end
        self._lock = threading.Lock()

    def is_new(self, what: str) -> bool:
        """Return whether to log a message now, and note it as logged."""
        now = time.monotonic()
        with self._lock:
            while self._until and self._until[first := next(iter(self._until))] <= now:
                del self._until[first]
            if what in self._until or len(self._until) >= MOST_SAID:
                return False
            self._until[what] = now + SAY_AGAIN_S
            return True
