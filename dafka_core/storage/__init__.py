"""The store's durable log."""

from dafka_core.storage.block import Chunk
from dafka_core.storage.log import Log
from dafka_core.storage.snapshot import Snapshot
from dafka_core.storage.staging import (
    STAGED_HOURS,
    Commit,
    Discard,
    Entry,
    Mark,
    Staged,
    attempt_octets,
)
from dafka_core.storage.statistics import PartitionStatistics
from dafka_core.storage.writing import WrongOffsetError

__all__ = [
    "STAGED_HOURS",
    "Chunk",
    "Commit",
    "Discard",
    "Entry",
    "Log",
    "Mark",
    "PartitionStatistics",
    "Snapshot",
    "Staged",
    "WrongOffsetError",
    "attempt_octets",
]
