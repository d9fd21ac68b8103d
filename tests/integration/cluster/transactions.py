"""Transactions written by hand: writers of one partition, and what stores have of it then."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from dafka_core import EmbeddedCluster
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.records import TopicPartition, TransactionState
from dafka_spark.cluster.timing import Deadline
from dafka_spark.options import SinkOptions
from dafka_spark.sink.commit_messages import PickedStore, WrittenRange
from dafka_spark.sink.rows import PartitionWriter
from dafka_spark.sink.store_session import StoreSession
from dafka_spark.sink.transaction_writer import TransactionalWriter, WriterFactory

PARTITION = "0A3F8E1BBB578999443B8818C5851AFC"
PATIENCE_S = 30.0


def options(cluster: EmbeddedCluster, **given: object) -> SinkOptions:
    return SinkOptions.of({"tower": cluster.tower, **{k: str(v) for k, v in given.items()}})


def transaction(
    cluster: EmbeddedCluster,
    topic: str,
    store: str = "",
    partition: str = PARTITION,
    **given: object,
) -> TransactionalWriter:
    """What one attempt of a task opens.  The test's process keeps its clients."""
    factory = WriterFactory(options(cluster, **given), picked=PickedStore(store, ()))
    writer = factory.open(TopicPartition(topic, partition))
    assert isinstance(writer, TransactionalWriter)
    return writer


def opened(cluster: EmbeddedCluster, topic: str, **given: object) -> PartitionWriter:
    """What one attempt of a task opens for at-least-once."""
    factory = WriterFactory(options(cluster, delivery="at-least-once", **given))
    return factory.open(TopicPartition(topic, PARTITION))


def hosted(cluster: EmbeddedCluster, topic: str, **given: object) -> TransactionalWriter:
    """The same, where a store with Flight hosts the partition."""
    writer = opened(cluster, topic, **given)
    assert isinstance(writer, TransactionalWriter)
    return writer


def write(writer: PartitionWriter, start: int, stop: int) -> WrittenRange:
    writer.write(numbers(start, stop))
    return writer.finish(soon())


def soon() -> Deadline:
    """What a writer has to finish in."""
    return Deadline(PATIENCE_S)


def restarts(monkeypatch: pytest.MonkeyPatch) -> list[Deadline]:
    """The deadlines that are restarted from now on, each as often as it is."""
    restart, seen = Deadline.restart, list[Deadline]()

    def counted(deadline: Deadline) -> None:
        seen.append(deadline)
        restart(deadline)

    monkeypatch.setattr(Deadline, "restart", counted)
    return seen


def host_of(cluster: EmbeddedCluster, writer: TransactionalWriter) -> int:
    """The index of the store that hosts the writer's partition."""
    assert writer.rows.host is not None
    return cluster.stores.index(writer.rows.host.location.store)


def numbers(start: int, stop: int) -> pa.Array:
    return pa.array([b"%d" % number for number in range(start, stop)])


def texts_of(values: pa.Array) -> list[bytes]:
    found: list[bytes] = values.to_pylist()
    return found


@dataclasses.dataclass(frozen=True)
class Held:
    """One store's part of the partition."""

    values: list[bytes]
    info: TransactionState


def held(cluster: EmbeddedCluster, topic: str, index: int = 0, partition: str = PARTITION) -> Held:
    """What one store has."""
    store = cluster.stores[index]
    with StoreSession(options(cluster).mesh_address) as session:
        (client,) = [each for each in session.refresh() if each.location.store == store]
        tp = TopicPartition(topic, partition)
        (info,) = client.transaction_states([tp], timeout_s=PATIENCE_S)
        return Held(read(client, tp, info.end), info)


def read(client: StoreClient, tp: TopicPartition, end: int) -> list[bytes]:
    found = client.read(
        tp, 0, end, times=False, max_records=1000, max_bytes=1 << 20, timeout_s=PATIENCE_S
    )
    return [value for batch in found for value in batch.values]
