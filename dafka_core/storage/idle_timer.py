"""Whether something is going on, and how long ago it ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class IdleTimer:
    """Any number of threads may be at it at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way = 0
        self._ended_s = float("-inf")

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Inside, it is going on."""
        with self._lock:
            self._under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1
                self._ended_s = time.monotonic()

    @property
    def quiet_s(self) -> float:
        """How long ago it ended, 0 while it is going on, infinity before it ever was."""
        with self._lock:
            return 0.0 if self._under_way else time.monotonic() - self._ended_s
