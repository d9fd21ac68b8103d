"""Trying again until a moment: the only loop of the connector that sleeps and looks again."""

from __future__ import annotations

import time
from collections.abc import Iterator

from dafka_spark.cluster.timing import LOOK_AGAIN_S

LEAST_S = 0.001
"""What is left at the end: an operation looks once at least."""


class Deadline:
    """The moment ``timeout_s`` seconds after this was made, on the clock ``time.monotonic``."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._began = time.monotonic()

    @property
    def waited_s(self) -> float:
        """The seconds since the beginning."""
        return time.monotonic() - self._began

    @property
    def left_s(self) -> float:
        """The seconds until the deadline, and a little at and after it."""
        return max(self.timeout_s - self.waited_s, LEAST_S)

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self.waited_s >= self.timeout_s

    def pause(self) -> None:
        """Sleeps until it is time to look again, but not beyond the deadline."""
        time.sleep(min(LOOK_AGAIN_S, self.left_s))

    def attempts(self) -> Iterator[int]:
        """Counts attempts from 0 on, with pauses between them.

        The first one comes at once, the last one begins before the deadline: whoever leaves the
        loop at its end has failed.
        """
        number = 0
        while number == 0 or not self.is_over:
            if number:
                self.pause()
            yield number
            number += 1
