"""The store's durable log."""

from dafka_core.storage.block import Chunk
from dafka_core.storage.log import Log, PartitionStatistics
from dafka_core.storage.snapshot import Snapshot
from dafka_core.storage.writing import WrongOffsetError

__all__ = ["Chunk", "Log", "PartitionStatistics", "Snapshot", "WrongOffsetError"]
