"""Series of numbers over ten minutes, six hours and seven days, in memory of a fixed size."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from math import isnan
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dafka_core.errors import InvalidRequestError

WINDOWS: Final = {"10m": 600, "6h": 21_600, "7d": 604_800}  # windows by name, in seconds
POINTS: Final = 200  # means of each window: of 3 s, 108 s and 50 min

MOST_SERIES: Final = 10_000
"""Series that are kept: 24 MB.  Any client can create topics, and name queries."""


class TimeSeries:
    """Means of values, in a ring for each window.  Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: list[Hashable] = []
        self._rows: dict[Hashable, int] = {}
        self._rings = np.full((len(WINDOWS), 0, POINTS), np.nan, np.float32)
        self._slots = [-1] * len(WINDOWS)  # the newest mean of each ring, since 1970
        self._counts = [0] * len(WINDOWS)  # the values in it

    def add(
        self, time_s: float, names: Sequence[Hashable], values: Sequence[float] | npt.NDArray[Any]
    ) -> None:
        """Add a value of each series; forget series without one."""
        with self._lock:
            self._name([*names[:MOST_SERIES]])
            column = np.asarray(values[:MOST_SERIES], np.float32)
            for number, window_s in enumerate(WINDOWS.values()):
                before, ring = self._slots[number], self._rings[number]
                slot = max(int(time_s * POINTS / window_s), before)  # a clock may be set back
                if slot > before:
                    new = np.arange(max(before + 1, slot - POINTS + 1), slot + 1)
                    ring[:, new % POINTS] = np.nan
                    self._slots[number], self._counts[number] = slot, 0
                self._counts[number] += 1
                mean = ring[:, slot % POINTS]
                step = (column - mean) / self._counts[number]
                ring[:, slot % POINTS] = np.where(np.isnan(mean), column, mean + step)

    def points(self, name: Hashable, window: str) -> list[tuple[int, float]]:
        """Return the means of a window, oldest first, each with the time of its beginning."""
        if window not in WINDOWS:
            why = f"must be one of {', '.join(WINDOWS)}"
            raise InvalidRequestError("window", window[:100], why)
        number = [*WINDOWS].index(window)
        step_s = WINDOWS[window] / POINTS
        with self._lock:
            slots = np.arange(max(self._slots[number] - POINTS + 1, 0), self._slots[number] + 1)
            row = self._rows.get(name)
            means = () if row is None else self._rings[number, row, slots % POINTS].tolist()
        pairs = zip((slots * step_s).tolist(), means, strict=False)
        return [(round(at), round(mean, 2)) for at, mean in pairs if not isnan(mean)]

    def last(self, name: Hashable, count: int) -> list[float]:
        """Return the last means of the shortest window, up to ``count``."""
        return [mean for _, mean in self.points(name, next(iter(WINDOWS)))[-count:]]

    def slope(self, name: Hashable) -> float:
        """Return the growth per second over the last minute; 0 without two points."""
        points = self.points(name, "10m")[-21:]
        if len(points) < 2:
            return 0.0
        (first_s, first), *_, (last_s, last) = points
        return (last - first) / (last_s - first_s)

    def _name(self, names: list[Hashable]) -> None:
        if names == self._names:
            return
        old = self._rings
        self._rings = np.full((len(WINDOWS), len(names), POINTS), np.nan, np.float32)
        kept = [(row, self._rows[name]) for row, name in enumerate(names) if name in self._rows]
        if kept:
            new, before = map(list, zip(*kept, strict=True))
            self._rings[:, new] = old[:, before]
        self._names, self._rows = names, {name: row for row, name in enumerate(names)}
