"""Dafka (ZeroMQ RFC 46): a brokerless Kafka.

Producers publish records over ZeroMQ straight to consumers and stores; a topic has one partition
per producer; stores keep every partition on disk; towers introduce the nodes to each other.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dafka_core.config.node_options import StoreLimitError as StoreLimitError
    from dafka_core.errors import BackPressureError as BackPressureError
    from dafka_core.errors import ClosedError as ClosedError
    from dafka_core.errors import ConfigError as ConfigError
    from dafka_core.errors import DafkaError as DafkaError
    from dafka_core.errors import DataLossError as DataLossError
    from dafka_core.errors import FetchTimeoutError as FetchTimeoutError
    from dafka_core.errors import ForkedError as ForkedError
    from dafka_core.errors import InvalidRequestError as InvalidRequestError
    from dafka_core.errors import NodeFailedError as NodeFailedError
    from dafka_core.errors import NoStoreError as NoStoreError
    from dafka_core.errors import NotAcknowledgedError as NotAcknowledgedError
    from dafka_core.errors import PartitionFullError as PartitionFullError
    from dafka_core.errors import ProducerFencedError as ProducerFencedError
    from dafka_core.errors import ProtocolError as ProtocolError
    from dafka_core.errors import RecordTooLargeError as RecordTooLargeError
    from dafka_core.errors import StoreError as StoreError
    from dafka_core.errors import TowerNotFoundError as TowerNotFoundError
    from dafka_core.model.log_entries import TransactionExistsError as TransactionExistsError
    from dafka_core.model.records import PartitionInfo as PartitionInfo
    from dafka_core.model.records import Record as Record
    from dafka_core.model.records import RecordBatch as RecordBatch
    from dafka_core.nodes.consumer import Consumer as Consumer
    from dafka_core.nodes.producer import Producer as Producer
    from dafka_core.nodes.reader import Reader as Reader
    from dafka_core.nodes.store import Store as Store
    from dafka_core.nodes.tower import Tower as Tower
    from dafka_core.ops.endpoint import MetricsEndpoint as MetricsEndpoint
    from dafka_core.ops.endpoint import serve_metrics as serve_metrics
    from dafka_core.testing.embedded_cluster import EmbeddedCluster as EmbeddedCluster

_NAMES: Final = {
    "config.node_options": "StoreLimitError",
    "errors": "BackPressureError ClosedError ConfigError DafkaError DataLossError "
    "FetchTimeoutError ForkedError InvalidRequestError NoStoreError NodeFailedError "
    "NotAcknowledgedError PartitionFullError ProducerFencedError ProtocolError "
    "RecordTooLargeError StoreError TowerNotFoundError",
    "model.log_entries": "TransactionExistsError",
    "model.records": "PartitionInfo Record RecordBatch",
    "nodes.consumer": "Consumer",
    "nodes.producer": "Producer",
    "nodes.reader": "Reader",
    "nodes.store": "Store",
    "nodes.tower": "Tower",
    "ops.endpoint": "MetricsEndpoint serve_metrics",
    "testing.embedded_cluster": "EmbeddedCluster",
}  # by their modules
_HOMES: Final = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    # Imported when it is asked for: who needs a reader, or ``dafka --help``, waits for no store.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"{__name__}.{_HOMES[name]}")
    found = globals()[name] = getattr(home, name)
    return found
