"""The store's durable log."""

from dafka_core.log_entries import (
    STAGED_HOURS,
    Commit,
    Discard,
    LogEntry,
    SetTransaction,
    Stage,
    attempt_octets,
)
from dafka_core.storage.log import Log
from dafka_core.storage.snapshot import Snapshot
from dafka_core.storage.tables import PartitionStatistics

__all__ = [
    "STAGED_HOURS",
    "Commit",
    "Discard",
    "Log",
    "LogEntry",
    "PartitionStatistics",
    "SetTransaction",
    "Snapshot",
    "Stage",
    "attempt_octets",
]
