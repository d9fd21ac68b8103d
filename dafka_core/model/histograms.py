"""Durations counted in fixed buckets, so that counts of several nodes can be added."""

from __future__ import annotations

import threading
from bisect import bisect_left
from typing import Final, NamedTuple

BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""From a disk that syncs at once to one that delays a store: seconds, each bound included."""


class Counted(NamedTuple):
    """The counts of durations up to each of ``BOUNDS_S`` and beyond, and the sum of all."""

    counts: tuple[int, ...]
    sum_s: float


class Durations:
    """A histogram of durations.  Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def add(self, took_s: float) -> None:
        """Count one duration."""
        with self._lock:
            self._counts[bisect_left(BOUNDS_S, took_s)] += 1
            self._sum_s += took_s

    @property
    def counted(self) -> Counted:
        """Return the current counts."""
        with self._lock:
            return Counted(tuple(self._counts), self._sum_s)
