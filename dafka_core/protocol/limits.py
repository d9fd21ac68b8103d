"""Limits on what peers may send and make a node keep, each with its reason."""

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
"""An endpoint's URI: a host name has at most 253 octets, a Unix socket's path about 100."""

MAX_SEQUENCE: Final = 2**63 - 2
"""Sequences are unsigned on the wire, but offsets are signed 64-bit numbers in Spark and Arrow, and
the one after the last must fit, too."""

MAX_FETCH_COUNT: Final = 100_000
"""What C nodes ask for at once; a larger count is clamped, so that a few octets cannot make a node
send a whole partition."""

MAX_FETCH_PARTITIONS: Final = 1_000
"""Partitions that one FETCH-BATCH asks for, or one answer to it has records of: both stay small."""

MAX_ANSWER_BYTES: Final = 64 << 20
"""The most that one FETCH is answered with; the requestor asks again for more."""

MAX_REPLY_BYTES: Final = MAX_REPLY_ENTRIES * 543
"""The largest of what is not one record: a HEADS-REPLY, whose entries have two names and two
numbers.  Packed messages of several records are smaller.  Every node takes a frame of this size,
however small the records are that it takes."""

LENGTH_BYTES: Final = 4
"""What the length of a record takes in a packed message."""

RUN_BYTES: Final = 12
"""What a run of timestamps takes in a packed message: a timestamp and the count of its records."""

RECORD_OVERHEAD_BYTES: Final = LENGTH_BYTES + RUN_BYTES
"""What a record costs at most in a packed message, beside its octets."""

MAX_STORES: Final = 1_000
"""Stores that a node remembers.  Peers choose the names."""

MAX_BATCH_COUNT: Final = 65_536
"""Records in one packed message."""

DIRECT_BATCH_BYTES: Final = 512 << 10
"""The most that is packed into one message of the answer to a FETCH, as ``LIVE_BATCH_BYTES`` where
records are published; the requestor bounds the answer by what it asks for."""


def max_frame_bytes(max_record_bytes: int) -> int:
    """The largest frame of a peer's that a node needs which takes such records."""
    return max(max_record_bytes + RECORD_OVERHEAD_BYTES, MAX_REPLY_BYTES)


def max_taken_bytes(max_record_bytes: int) -> int:
    """The largest record that such frames carry, in each form: what a node announces."""
    return max_frame_bytes(max_record_bytes) - RECORD_OVERHEAD_BYTES


T = TypeVar("T")


class RecentNames(dict[str, T]):
    """At most ``most`` names; the oldest is the likeliest to be gone."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def keep(self, name: str, value: T) -> None:
        """Adds a name, or makes it the newest."""
        self.pop(name, None)
        self[name] = value
        if len(self) > self._most:
            del self[next(iter(self))]
