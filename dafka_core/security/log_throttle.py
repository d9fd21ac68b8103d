"""What has been said of refusals lately: anybody can be refused thousands of times a second."""

from __future__ import annotations

import threading
import time
from typing import Final

SAY_AGAIN_S: Final = 60.0
"""How often the same refusal is said."""

MOST_SAID: Final = 1_000
"""Refusals that are said in that time; beyond these they are counted only."""


class SaidLately:
    """Tells what is to be said from what was said lately.  Thread-safe."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}  # in the order in which they end
        self._lock = threading.Lock()

    def is_new(self, what: str) -> bool:
        """Whether this is to be said now; it is taken for said then."""
        now = time.monotonic()
        with self._lock:
            while self._until and self._until[first := next(iter(self._until))] <= now:
                del self._until[first]
            if what in self._until or len(self._until) >= MOST_SAID:
                return False
            self._until[what] = now + SAY_AGAIN_S
            return True
