"""Limits on what peers can make a node do: sizes and numbers with their reasons, and containers.

``RecentNames`` bounds a dict whose keys peers choose.  In ``FairQueue`` the peers take turns: none
delays the others, whatever number of entries it adds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain
from typing import Final, Generic, TypeVar

MAX_HEADER_BYTES: Final = 4096  # three times the longest topic, address and subject
# A CONSUMER-HELLO lists every topic of a consumer: some 4000 topics with the longest names.
MAX_HELLO_BYTES: Final = 1 << 20
# Entries in one HEADS-REPLY or TIMES-REPLY, which stays a small message; the next has more.
MAX_REPLY_ENTRIES: Final = 10_000
# The largest message other than one record: a HEADS-REPLY, whose entries have two names, two
# offsets and a life.  Packed messages of several records are smaller.  Every node accepts a frame
# of this size, even if it accepts only smaller records.
MAX_REPLY_BYTES: Final = MAX_REPLY_ENTRIES * 543

MAX_LOCATIONS: Final = 8  # endpoints of one store: one per kind of transport, and some to spare
# An endpoint's URI: a host name has at most 253 bytes, a Unix socket's path about 100.
MAX_LOCATION_BYTES: Final = 400
MAX_STORES: Final = 1_000  # stores that a node remembers; peers choose the names

# Sequences are unsigned on the wire, but offsets are signed 64-bit numbers in Spark and Arrow, and
# the one after the last must fit, too.
MAX_SEQUENCE: Final = 2**63 - 2
# The largest count that C nodes request; a larger one is clamped, so that a few bytes cannot make a
# node send a whole partition.
MAX_FETCH_COUNT: Final = 100_000
MAX_FETCH_PARTITIONS: Final = 1_000  # in one FETCH-BATCH, and in one answer to it: both stay small
MAX_ANSWER_BYTES: Final = 64 << 20  # in answer to one FETCH; the requestor asks again for more

MAX_BATCH_COUNT: Final = 65_536  # records in one packed message
LENGTH_BYTES: Final = 4  # of a record's length in a packed message
RUN_BYTES: Final = 12  # of a run of timestamps in it: a timestamp, and the count of its records
RECORD_OVERHEAD_BYTES: Final = LENGTH_BYTES + RUN_BYTES  # of a record in it, at most
# Packed into one message of the answer to a FETCH, as LIVE_BATCH_BYTES for published records; the
# requestor bounds the whole answer.
DIRECT_BATCH_BYTES: Final = 512 << 10


def max_frame_bytes(max_record_bytes: int) -> int:
    """Return the largest frame that a node with this record limit must accept."""
    return max(max_record_bytes + RECORD_OVERHEAD_BYTES, MAX_REPLY_BYTES)


def max_taken_bytes(max_record_bytes: int) -> int:
    """Return the largest record that such frames carry in each form."""
    return max_frame_bytes(max_record_bytes) - RECORD_OVERHEAD_BYTES


T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class RecentNames(dict[str, T]):
    """A dict of at most ``most`` names, without the oldest ones."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def keep(self, name: str, value: T) -> None:
        """Add a name, or make it the newest."""
        self.pop(name, None)
        self[name] = value
        if len(self) > self._most:
            del self[next(iter(self))]


class FairQueue(Generic[K, V]):
    """Values by owner and key.  The next one is the oldest of the owner after ``taken_from``."""

    def __init__(self) -> None:
        self.taken_from = ""
        # By owner, never empty.  A plain dict skips all removed keys before its first one.
        self._queues: OrderedDict[str, OrderedDict[K, V]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[V]:
        return chain.from_iterable(queue.values() for queue in self._queues.values())

    def put(self, owner: str, key: K, value: V) -> None:
        """Add a value behind the others of its owner, or replace the one with its key."""
        queue = self._queues.get(owner)
        if queue is None:
            queue = self._queues[owner] = OrderedDict()
        self._size += key not in queue
        queue[key] = value

    def take(self) -> V | None:
        """Remove the next value, if any; its owner's next one waits for the other owners."""
        if not self._queues:
            return None
        self.taken_from, queue = self._queues.popitem(last=False)
        _, value = queue.popitem(last=False)
        self._size -= 1
        if queue:
            self._queues[self.taken_from] = queue
        return value

    def remove(self, owner: str, key: K) -> V | None:
        """Remove and return a value, if it is there."""
        queue = self._queues.get(owner)
        if queue is None or key not in queue:
            return None
        self._size -= 1
        value = queue.pop(key)
        if not queue:
            del self._queues[owner]
        return value
