"""How long a query that has nothing to do may wait for news before it answers Spark.

Without a trigger interval Spark asks for the latest offset, sleeps for 10 ms if it is the one
before, and asks again.  An answer that comes later saves all processes work, and delays whatever
else the query has to do: its other sources, and its end in some cases.
"""

from __future__ import annotations

import time
from typing import Final

SPARK_POLLING_S: Final = 0.01
"""How long Spark sleeps unless it is told otherwise (``spark.sql.streaming.pollingDelay``)."""

POLLING_GAP_S: Final = 0.03
"""What passes between two questions at most while Spark does nothing else.  After more there are
other sources, which wait as well, or a short trigger interval: then nobody waits for long."""

SHORT_S: Final = 0.05
"""How long to wait at first."""

LONG_S: Final = 0.25
"""The longest wait: four questions a second cost little.  A query's other sources, if they do not
wait, are asked so late at worst when nothing has come for seconds."""

SHARE: Final = 0.05
"""Of the time for which nothing has come: who was idle for long may wait for longer."""

PAUSE_S: Final = 0.5
"""A query that asks so seldom has a trigger interval, and is never kept waiting."""


class IdleWait:
    """One query's questions, and whether there was something new."""

    def __init__(self) -> None:
        self._idle_since: float | None = None
        self._answered_at = 0.0

    def answered(self, *, idle: bool) -> None:
        """Notes an answer: that there is nothing new, or something."""
        self._answered_at = time.monotonic()
        if not idle:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = self._answered_at

    def allowed_s(self) -> float:
        """How long the question that has just come may wait."""
        now = time.monotonic()
        gap_s = now - self._answered_at
        if self._idle_since is None or gap_s > PAUSE_S:
            self._idle_since = None
            return 0.0
        if gap_s > POLLING_GAP_S:
            return SHORT_S
        return min(max(SHARE * (now - self._idle_since), SHORT_S), LONG_S)
