"""Throttles for guessed passwords, and for log messages about refusals."""

from __future__ import annotations

import threading
import time
from ipaddress import ip_network
from typing import Final

from dafka_core.system.hosts import address_of, plain

MOST_WRONG: Final = 10  # guesses of an address in a minute; then its requests are refused
MINUTE_S: Final = 60.0
MAX_ADDRESSES: Final = 10_000  # addresses with counted wrong guesses; the oldest one is dropped
REPEAT_AFTER_S: Final = 60.0  # interval of the same message
MAX_MESSAGES: Final = 1_000  # different messages in that time; further ones are only counted


class Guesses:
    """Counts wrong guesses by the address that they came from.  Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wrong: dict[str, tuple[int, float]] = {}

    def are_refused(self, address: str) -> bool:
        """Return True if requests from the address are refused now, right or wrong."""
        with self._lock:
            return self._counted(guesser(address))[0] >= MOST_WRONG

    def add_wrong(self, address: str) -> int:
        """Count a wrong guess; return the number within the last minute."""
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
    """Return the network of an IPv6 address: one user may have all of its addresses."""
    found = address_of(address.partition("%")[0])
    if found is None or found.version == 4:
        return plain(address)
    return str(ip_network((found, 64), strict=False))


class LogThrottle:
    """Logs each message once a minute, and a limited number of them.  Thread-safe."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}  # in the order of their ends
        self._lock = threading.Lock()

    def is_new(self, what: str) -> bool:
        """Return whether to log a message now, and note it as logged."""
        now = time.monotonic()
        with self._lock:
            while self._until and self._until[first := next(iter(self._until))] <= now:
                del self._until[first]
            if what in self._until or len(self._until) >= MAX_MESSAGES:
                return False
            self._until[what] = now + REPEAT_AFTER_S
            return True
