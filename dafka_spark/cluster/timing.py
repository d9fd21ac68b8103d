"""How long the connector waits for the cluster: all times together, as they depend on each other.

The mesh gives up a peer 4 s after its last beacon (``peer_expiry_ms``).  A task that misses a store
waits longer than that before it takes the store for gone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

LOOK_AGAIN_S: Final = 0.2
"""Between two looks at what changes by itself: which stores there are, and what they have."""

ANSWER_S: Final = 5.0
"""The longest wait for one store's word on what it has at hand.  Longer than the mesh needs to
notice that the store is gone, after which it is not asked."""

RETRY_S: Final = 1.0
"""A store that did not answer is left alone for so long, so that triggers do not wait for it."""

SILENT_S: Final = 6.0
"""How long a store that does not answer is waited for while the mesh still tells of it.  Longer
than the mesh's expiry; a store that is there and stays silent is of no use either."""

UNREACHABLE_S: Final = 10.0
"""A store that does not answer for longer, and that the mesh still hears, is asked over the mesh:
it lives, but Flight does not reach it from here.  One that died is forgotten before."""

DESCRIPTION_S: Final = 30.0
"""How long to believe where a store's log is and which start of the store it belongs to."""

FIND_S: Final = 2.0
"""The first store is heard of in less, if there is one; stores that are known and far away are
waited for longer (``dafka_core/protocol/store_directory.py``)."""

TRUST_S: Final = 1.0
"""How long a task trusts what its process knows of the stores without asking one of them."""

OTHERS_S: Final = 4.0
"""How long only stores without Flight may be heard of: a store with Flight that has just started is
heard of before it has said where it is."""

DISCARD_S: Final = 2.0
"""How long giving up may take: what is not discarded now, the store discards some day."""

RANGES_S: Final = 5.0
"""How old what is known of the stores may be for a plan.  A query that reads only what there was
asks for no offsets, but stores come and go meanwhile."""

WATCH_S: Final = 3.0
"""How long one request waits at a store for something new.  With the time that its answer may take
it is no longer than what is watched for a host that vanishes, which takes more than a request."""

LOOK_S: Final = 1.0
"""How long stores may be silent before an idle query asks them: there may be others now."""

UNWATCHED_S: Final = 0.04
"""Between two looks of an idle query at a store that does not tell when something changes."""

COMPLETE_S: Final = 10.0
"""How long a store's word on what has changed is believed without asking for everything."""

IDLE_S: Final = 60.0
"""How long an unused connection stays open: longer than between two micro-batches of most queries,
so that they find it connected."""

REMEMBER_S: Final = 600.0
"""How often to write down again where stores are when that has not changed."""

TOWER_S: Final = 5.0
"""How long a process that knows stores already looks for a tower before it goes on with these."""

TOWERLESS_S: Final = 60.0
"""How long a process that found no tower goes on with the stores it knows before it looks again."""


class Deadline:
    """The moment ``timeout_s`` seconds after this was made."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._began = time.monotonic()

    @property
    def waited_s(self) -> float:
        """The seconds since the beginning."""
        return time.monotonic() - self._began

    @property
    def left_s(self) -> float:
        """The seconds until the deadline; a little at and after it, to look once at least."""
        return max(self.timeout_s - self.waited_s, 0.001)

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self.waited_s >= self.timeout_s

    def restart(self) -> None:
        """Waits as long anew: there was progress."""
        self._began = time.monotonic()

    def pause(self) -> None:
        """Sleeps until it is time to look again, but not beyond the deadline."""
        time.sleep(min(LOOK_AGAIN_S, self.left_s))

    def attempts(self) -> Iterator[int]:
        """Counts attempts from 0 on, with pauses between them: one at once, one at the deadline."""
        number = 0
        while number == 0 or not self.is_over:
            if number:
                self.pause()
            yield number
            number += 1
