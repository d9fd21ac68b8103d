"""The limits that an operator sets (docs/security.md), and the error of what exceeds a store's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from dafka_core.config.options import Options, option
from dafka_core.errors import PartitionError

MAX_VALUE_BYTES: Final = 256 << 20
"""The default for the largest record that a node takes (``max_record_bytes``)."""

MAX_RECORD_BYTES: Final = 2**31 - 1
"""The most that ``max_record_bytes`` may be: Arrow's type for records has signed 32-bit offsets."""

LIVE_BATCH_BYTES: Final = 32 << 10
"""The most that a producer packs into one message (or one record, if that is larger).  PUB sockets
count messages: this times the high-water mark is how much waits for a peer that does not read."""


@dataclass(eq=False)
class StoreLimitError(PartitionError):
    """Records that a store does not take by a limit of its own; ``owner`` is whose they are."""

    sentence = (
        "the store takes no records of it, by its option {option} = {limit} (owner {owner}): have "
        "retention or a deletion make room there, or raise the option"
    )
    owner: str
    option: str
    limit: int


@dataclass(frozen=True)
class PeerLimitOptions(Options):
    """What a node takes of each peer."""

    max_peer_rate_bytes: int = option(
        0,
        "what is received of one peer per second, on the average of some seconds: one that sends "
        "more waits, and the others do not. 0: no limit",
        unit="bytes/s",
        minimum=0,
    )


@dataclass(frozen=True)
class StoreLimitOptions(Options):
    """What a store keeps at most.  Of each, 0 means without a limit."""

    max_partitions: int = option(
        1_000_000,
        "partitions that the store takes, of all topics; some 1 KB of memory each",
        unit="partitions",
        minimum=1,
    )
    max_topics: int = option(
        100_000,
        "topics that the store takes; more are mostly a program that makes up names. 0: no limit",
        unit="topics",
        minimum=0,
    )
    max_partitions_per_topic: int = option(
        0,
        "partitions of one topic that the store takes: each producer that was started without an "
        "address has made one. 0: no limit but the others",
        unit="partitions",
        minimum=0,
    )
    max_partitions_per_key: int = option(
        50_000,
        "partitions of one key's owner that the store takes, so that nobody uses up "
        "max_partitions and max_topics; without keys, of one address. 0: no limit",
        unit="partitions",
        minimum=0,
    )
    max_key_bytes: int = option(
        0,
        "what the records of one key's owner may take on the store's disk, so that nobody fills "
        "it; without keys, those of one address, which is one partition of each topic. 0: no limit",
        unit="bytes",
        minimum=0,
    )

    @property
    def store_limits(self) -> Mapping[str, int]:
        """These limits by their names."""
        return {each.name: getattr(self, each.name) for each in fields(StoreLimitOptions)}
