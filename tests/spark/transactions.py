"""Units written by hand: publishers of one partition, and what stores have of it then."""

from __future__ import annotations

import dataclasses
from contextlib import closing

import pyarrow as pa

from dafka_core import EmbeddedCluster
from dafka_core.flight.store_client import StoreClient
from dafka_core.records import TopicPartition, TransactionState
from dafka_spark.cluster import store_registry
from dafka_spark.options import SinkOptions
from dafka_spark.sink.commit_coordinator import PickedStore, TransactionalWriterFactory
from dafka_spark.sink.transactional_writer import TransactionalWriter

PARTITION = "0A3F8E1BBB578999443B8818C5851AFC"
PATIENCE_S = 30.0


def options(cluster: EmbeddedCluster, **given: object) -> SinkOptions:
    return SinkOptions.of({"tower": cluster.tower, **{k: str(v) for k, v in given.items()}})


def transaction(
    cluster: EmbeddedCluster,
    topic: str,
    number: int,
    store: str = "",
    partition: str = PARTITION,
    **given: object,
) -> TransactionalWriter:
    """What one attempt of a task opens.  The test's process keeps its clients."""
    opener = TransactionalWriterFactory(
        options(cluster, **given), number, pick=PickedStore(store, ())
    )
    return opener(TopicPartition(topic, partition))


def numbers(start: int, stop: int) -> pa.Array:
    return pa.array([b"%d" % number for number in range(start, stop)])


def texts_of(values: pa.Array) -> list[bytes]:
    found: list[bytes] = values.to_pylist()
    return found


@dataclasses.dataclass(frozen=True)
class HeldRange:
    """One store's part of the partition."""

    values: list[bytes]
    info: TransactionState


def held(
    cluster: EmbeddedCluster, topic: str, index: int = 0, partition: str = PARTITION
) -> HeldRange:
    """What one store has."""
    store = cluster.stores[index]
    with closing(store_registry.StoreRegistry(options(cluster).mesh_address)) as found:
        (client,) = [each for each in found.anew() if each.location.store == store]
        tp = TopicPartition(topic, partition)
        (info,) = client.transaction_states([tp], timeout_s=PATIENCE_S)
        return HeldRange(read(client, tp, info.end), info)


def read(client: StoreClient, tp: TopicPartition, end: int) -> list[bytes]:
    found = client.read(
        tp, 0, end, times=False, max_records=1000, max_bytes=1 << 20, timeout_s=PATIENCE_S
    )
    return [value for batch in found for value in batch.values]
