"""How long something takes, counted in fixed steps: cheap where it happens, whole where it is read.

The steps are fixed so that counts of several nodes can be added up, as Prometheus' histograms are.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from typing import Final, NamedTuple

BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""From a disk that syncs at once to one that a store waits for: seconds, each bound included."""


class Counted(NamedTuple):
    """What was counted by some moment.

    Attributes:
        counts: how many took longer than one bound and at most the next, in the order of
            ``BOUNDS_S``; the last count is of those beyond the last bound.
        sum_s: how long all of them took together.
    """

    counts: tuple[int, ...]
    sum_s: float


class Durations:
    """Counts durations.  Any thread may add one, and any may read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def add(self, took_s: float) -> None:
        """Counts one."""
        with self._lock:
            self._counts[bisect_left(BOUNDS_S, took_s)] += 1
            self._sum_s += took_s

    @property
    def counted(self) -> Counted:
        """All until now."""
        with self._lock:
            return Counted(tuple(self._counts), self._sum_s)
