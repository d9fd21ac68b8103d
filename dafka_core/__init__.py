"""Dafka (ZeroMQ RFC 46): a brokerless Kafka.

Producers publish records over ZeroMQ straight to consumers and stores; a topic has one partition
per producer; stores keep every partition on disk; towers introduce the nodes to each other.
"""

from __future__ import annotations

from dafka_core.embedded_cluster import EmbeddedCluster
from dafka_core.errors import (
    BackPressureError,
    ClosedError,
    ConfigError,
    DafkaError,
    DataLossError,
    FetchTimeoutError,
    ForkedError,
    InvalidRequestError,
    NodeFailedError,
    NoStoreError,
    NotAcknowledgedError,
    PartitionFullError,
    ProtocolError,
    RecordTooLargeError,
    StoreError,
    TowerNotFoundError,
)
from dafka_core.nodes.consumer import Consumer
from dafka_core.nodes.producer import Producer
from dafka_core.nodes.reader import Reader
from dafka_core.nodes.store import Store
from dafka_core.nodes.tower import Tower
from dafka_core.records import PartitionInfo, Record, RecordBatch

__all__ = [
    "BackPressureError",
    "ClosedError",
    "ConfigError",
    "Consumer",
    "DafkaError",
    "DataLossError",
    "EmbeddedCluster",
    "FetchTimeoutError",
    "ForkedError",
    "InvalidRequestError",
    "NoStoreError",
    "NodeFailedError",
    "NotAcknowledgedError",
    "PartitionFullError",
    "PartitionInfo",
    "Producer",
    "ProtocolError",
    "Reader",
    "Record",
    "RecordBatch",
    "RecordTooLargeError",
    "Store",
    "StoreError",
    "Tower",
    "TowerNotFoundError",
]
