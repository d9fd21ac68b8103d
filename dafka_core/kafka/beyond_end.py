"""Offsets beyond what a store has: it is behind other stores, or there is no such offset.

A client that has read at another gateway may know offsets that this one's store does not have yet.
It must not be told that they are out of range: it would begin anew at its ``auto.offset.reset``,
and read records twice or never.  So for a while there is merely nothing to read.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from dafka_core.records import TopicPartition
from dafka_core.storage import Log

LAG_S: Final = 30.0
"""How long an offset may be beyond the end before it is taken for one that is nowhere: stores copy
from each other within seconds once they have met."""

MAX_KEPT: Final = 10_000
"""Offsets that are remembered; of more, the one asked for first is asked for as if anew."""


class BeyondEnd:
    """Remembers since when offsets beyond the end have been asked for.  Thread-safe."""

    def __init__(self, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._since = OrderedDict[tuple[TopicPartition, int], float]()

    def may_come(self, tp: TopicPartition, offset: int) -> bool:
        """Whether another store may have the record before this offset, which is beyond the end."""
        if not self._log.met():
            return False
        now = self._clock()
        with self._lock:
            since = self._since.setdefault((tp, offset), now)
            if now - since > 2 * LAG_S:  # somebody else's, long ago
                self._since[tp, offset] = since = now
            if len(self._since) > MAX_KEPT:
                self._since.popitem(last=False)
        return now - since < LAG_S
