"""Timeouts and ages of the connector, which depend on each other.

The mesh forgets a peer 4 s after its last beacon (``peer_expiry_ms``).  A task waits longer for a
store before it continues without it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

# Requests
POLL_INTERVAL_S: Final = 0.2  # between attempts to see a change that no store announces
REQUEST_TIMEOUT_S: Final = 5.0  # longer than the mesh needs to forget a store that has died
STORE_BACKOFF_S: Final = 1.0  # after a store did not answer: triggers do not wait for it
STORE_TIMEOUT_S: Final = 6.0  # of a store that does not answer; longer than the mesh's expiry
# From then on the source reads over the mesh what only an unreachable Flight server has; by then
# the mesh has forgotten stores that ended.
FLIGHT_FAILURE_S: Final = 10.0
DISCARD_TIMEOUT_S: Final = 2.0  # for staged rows; the store discards the rest by age

# Discovery
DISCOVERY_TIMEOUT_S: Final = 2.0  # the first store answers earlier; dafka_core awaits known ones
FLIGHT_ANNOUNCE_TIMEOUT_S: Final = 4.0  # a store announces Flight some time after its start
LOCATION_MAX_AGE_S: Final = 30.0  # then a store describes it again: it may have restarted elsewhere
REGISTRY_MAX_AGE_S: Final = 1.0  # up to which the list of stores is used without a request
CONNECTION_IDLE_S: Final = 60.0  # then a connection is closed; longer than most trigger intervals
KNOWN_TOWER_S: Final = 5.0  # for finding a tower when the file of known stores is an alternative
TOWER_RETRY_S: Final = 60.0  # for using known stores before the towers are tried again
REWRITE_S: Final = 600.0  # of an unchanged file of known stores: the oldest files are deleted

# Snapshots of the source
SNAPSHOT_MAX_AGE_S: Final = 5.0  # for a plan: a query without new data asks for no offsets
FULL_HEADS_MAX_AGE_S: Final = 10.0  # then a store reports all partitions instead of the changes
# Time for which a store may hold a watch request.  With REQUEST_TIMEOUT_S it is at most the 8 s in
# which a client detects a lost host.
WATCH_TIMEOUT_S: Final = 3.0
IDLE_CHECK_S: Final = 1.0  # without a change an idle query asks the stores: new ones may have come
UNWATCHED_POLL_S: Final = 0.04  # of an idle query at a store without watch requests


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
