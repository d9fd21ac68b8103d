"""Timeouts and ages of the connector, which depend on each other.

The mesh forgets a peer 4 s after its last beacon (``peer_expiry_ms``).  A task waits longer for a
store before it continues without it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

POLL_INTERVAL_S: Final = 0.2
"""Interval between two attempts to see a change that no store announces."""

REQUEST_TIMEOUT_S: Final = 5.0
"""Timeout of a request; longer than the mesh needs to forget a store that has died."""

STORE_BACKOFF_S: Final = 1.0
"""Backoff after a store did not answer, so that triggers do not wait for it."""

STORE_TIMEOUT_S: Final = 6.0
"""Timeout of a store that does not answer; longer than the mesh's expiry."""

FLIGHT_FAILURE_S: Final = 10.0
"""From then on the source reads over the mesh what only an unreachable Flight server has; by then
the mesh has forgotten stores that ended."""

LOCATION_MAX_AGE_S: Final = 30.0
"""Age at which a store's location is asked for again: it may have restarted elsewhere."""

DISCOVERY_TIMEOUT_S: Final = 2.0
"""Timeout of discovery: the first store answers earlier, and ``dafka_core`` waits longer for known
stores that are far away."""

REGISTRY_MAX_AGE_S: Final = 1.0
"""Age up to which a task uses its process's list of stores without a request."""

FLIGHT_ANNOUNCE_TIMEOUT_S: Final = 4.0
"""Timeout of a sink that sees only stores without Flight: a store announces its Flight endpoint
some time after its start."""

DISCARD_TIMEOUT_S: Final = 2.0
"""Timeout for discarding staged rows; the store discards the rest by age."""

SNAPSHOT_MAX_AGE_S: Final = 5.0
"""Age at which a plan needs a new snapshot: a query without new data asks for no offsets."""

WATCH_TIMEOUT_S: Final = 3.0
"""Time for which a store may hold a watch request.  With ``REQUEST_TIMEOUT_S`` it is at most the
8 s in which a client detects a lost host."""

IDLE_CHECK_S: Final = 1.0
"""Silence of all watches after which an idle query asks the stores: new ones may have started."""

UNWATCHED_POLL_S: Final = 0.04
"""Poll interval of an idle query at a store without watch requests."""

FULL_HEADS_MAX_AGE_S: Final = 10.0
"""Age at which a store is asked for all partitions instead of the changes."""

CONNECTION_IDLE_S: Final = 60.0
"""Idle time after which a connection is closed; longer than most trigger intervals."""

REWRITE_S: Final = 600.0
"""Age at which an unchanged file of known stores is written again: the oldest are deleted."""

KNOWN_TOWER_S: Final = 5.0
"""Timeout for finding a tower when the file of known stores offers an alternative."""

TOWER_RETRY_S: Final = 60.0
"""Time for which a process uses known stores before it tries the towers again."""


class Deadline:
    """The moment ``timeout_s`` seconds after its creation."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._began = time.monotonic()

    @property
    def waited_s(self) -> float:
        """The seconds since the creation."""
        return time.monotonic() - self._began

    @property
    def left_s(self) -> float:
        """The seconds until the deadline; never 0, so that it is a valid timeout."""
        return max(self.timeout_s - self.waited_s, 0.001)

    @property
    def is_over(self) -> bool:
        """True once the deadline has passed."""
        return self.waited_s >= self.timeout_s

    def restart(self) -> None:
        """Start over, after progress."""
        self._began = time.monotonic()

    def pause(self) -> None:
        """Sleep until the next attempt, at most until the deadline."""
        time.sleep(min(POLL_INTERVAL_S, self.left_s))

    def attempts(self) -> Iterator[int]:
        """Count attempts from 0, with pauses between them; the last one is at the deadline."""
        number = 0
        while number == 0 or not self.is_over:
            if number:
                self.pause()
            yield number
            number += 1
