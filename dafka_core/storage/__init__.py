"""The store's durable log."""

from dafka_core.storage.log import Log
from dafka_core.storage.snapshot import PartitionStatistics

__all__ = ["Log", "PartitionStatistics"]
