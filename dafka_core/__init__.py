"""Dafka (ZeroMQ RFC 46): a brokerless Kafka.

Producers publish records over ZeroMQ straight to consumers and stores; a topic has one partition
per producer; stores keep every partition on disk; towers introduce the nodes to each other.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dafka_core.config.node_options import StoreLimitError
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
        ProducerFencedError,
        ProtocolError,
        RecordTooLargeError,
        StoreError,
        TowerNotFoundError,
    )
    from dafka_core.model.log_entries import TransactionExistsError
    from dafka_core.model.records import PartitionInfo, Record, RecordBatch
    from dafka_core.nodes.consumer import Consumer
    from dafka_core.nodes.producer import Producer
    from dafka_core.nodes.reader import Reader
    from dafka_core.nodes.store import Store
    from dafka_core.nodes.tower import Tower
    from dafka_core.ops.endpoint import MetricsEndpoint, serve_metrics
    from dafka_core.testing.embedded_cluster import EmbeddedCluster

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
    "MetricsEndpoint",
    "NoStoreError",
    "NodeFailedError",
    "NotAcknowledgedError",
    "PartitionFullError",
    "PartitionInfo",
    "Producer",
    "ProducerFencedError",
    "ProtocolError",
    "Reader",
    "Record",
    "RecordBatch",
    "RecordTooLargeError",
    "Store",
    "StoreError",
    "StoreLimitError",
    "Tower",
    "TowerNotFoundError",
    "TransactionExistsError",
    "serve_metrics",
]

_HOMES: Final = {
    "Consumer": "nodes.consumer",
    "EmbeddedCluster": "testing.embedded_cluster",
    "MetricsEndpoint": "ops.endpoint",
    "PartitionInfo": "model.records",
    "Producer": "nodes.producer",
    "Reader": "nodes.reader",
    "Record": "model.records",
    "RecordBatch": "model.records",
    "Store": "nodes.store",
    "StoreLimitError": "config.node_options",
    "Tower": "nodes.tower",
    "TransactionExistsError": "model.log_entries",
    "serve_metrics": "ops.endpoint",
}
"""Where what is not an error comes from."""


def __getattr__(name: str) -> Any:
    # Imported when it is asked for: who needs a reader, or ``dafka --help``, waits for no store.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"{__name__}.{_HOMES.get(name, 'errors')}")
    found = globals()[name] = getattr(home, name)
    return found
