"""Limits on messages of peers and on memory that they can make a node use, each with its reason."""

from __future__ import annotations

from typing import Final, TypeVar

MAX_HEADER_BYTES: Final = 4096
"""Topic, address and subject at their longest, three times over: nothing valid is longer."""

MAX_HELLO_BYTES: Final = 1 << 20
"""A CONSUMER-HELLO lists every topic of a consumer: some 4000 topics with the longest names."""

MAX_REPLY_ENTRIES: Final = 10_000
"""Entries in one HEADS-REPLY or TIMES-REPLY, which stays a small message; the next has more."""

MAX_LOCATIONS: Final = 8
"""Endpoints of one store: one per kind of transport, and some to spare."""

MAX_LOCATION_BYTES: Final = 400
"""An endpoint's URI: a host name has at most 253 bytes, a Unix socket's path about 100."""

MAX_SEQUENCE: Final = 2**63 - 2
"""Sequences are unsigned on the wire, but offsets are signed 64-bit numbers in Spark and Arrow, and
the one after the last must fit, too."""

MAX_FETCH_COUNT: Final = 100_000
"""The largest count that C nodes request; a larger one is clamped, so that a few bytes cannot make
a node send a whole partition."""

MAX_FETCH_PARTITIONS: Final = 1_000
"""Partitions in one FETCH-BATCH, and in one answer to it: both stay small."""

MAX_ANSWER_BYTES: Final = 64 << 20
"""The largest answer to one FETCH; the requestor asks again for more."""

MAX_REPLY_BYTES: Final = MAX_REPLY_ENTRIES * 543
"""The largest message other than one record: a HEADS-REPLY, whose entries have two names and two
numbers.  Packed messages of several records are smaller.  Every node accepts a frame of this size,
even if it accepts only smaller records."""

LENGTH_BYTES: Final = 4
"""Size of a record's length in a packed message."""

RUN_BYTES: Final = 12
"""Size of a run of timestamps in a packed message: a timestamp and the count of its records."""

RECORD_OVERHEAD_BYTES: Final = LENGTH_BYTES + RUN_BYTES
"""The largest overhead of a record in a packed message."""

MAX_STORES: Final = 1_000
"""Stores that a node remembers.  Peers choose the names."""

MAX_BATCH_COUNT: Final = 65_536
"""Records in one packed message."""

DIRECT_BATCH_BYTES: Final = 512 << 10
"""Bytes packed into one message of the answer to a FETCH, as ``LIVE_BATCH_BYTES`` for published
records; the requestor bounds the whole answer."""


def max_frame_bytes(max_record_bytes: int) -> int:
    """Return the largest frame that a node with this record limit must accept."""
    return max(max_record_bytes + RECORD_OVERHEAD_BYTES, MAX_REPLY_BYTES)


def max_taken_bytes(max_record_bytes: int) -> int:
    """Return the largest record that such frames carry in each form."""
    return max_frame_bytes(max_record_bytes) - RECORD_OVERHEAD_BYTES


T = TypeVar("T")


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
