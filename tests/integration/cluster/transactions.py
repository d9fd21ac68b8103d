"""Transactions without Spark: writers of one partition, their commit, and the state of stores."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pytest

from dafka_core import EmbeddedCluster
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.records import TopicPartition, TransactionState
from dafka_core.testing import PATIENCE_S
from dafka_spark.cluster.timing import Deadline
from dafka_spark.options import SinkOptions
from dafka_spark.sink import commit_coordinator
from dafka_spark.sink.application import Application
from dafka_spark.sink.commit_coordinator import pick_store
from dafka_spark.sink.staging import StagingWriter, WriterFactory, WrittenRange
from dafka_spark.sink.store_session import PickedStore, StoreSession

PARTITION = "0A3F8E1BBB578999443B8818C5851AFC"


def options(cluster: EmbeddedCluster, **given: object) -> SinkOptions:
    return SinkOptions.of({"tower": cluster.tower, **{k: str(v) for k, v in given.items()}})


def factory(chosen: SinkOptions, store: str = "") -> WriterFactory:
    """Return a task's writers at a store, by default at the one that a driver picks."""
    return WriterFactory(chosen, PickedStore(store, ()) if store else pick_store(chosen))


def transaction(
    cluster: EmbeddedCluster,
    topic: str,
    store: str = "",
    partition: str = PARTITION,
    **given: object,
) -> StagingWriter:
    """Return a writer of one attempt.  The test's process keeps its clients."""
    return factory(options(cluster, topic=topic, **given), store).open(
        TopicPartition(topic, partition)
    )


def stage(writer: StagingWriter, start: int, stop: int) -> WrittenRange:
    writer.write(numbers(start, stop))
    return writer.finish(soon())


def commit(chosen: SinkOptions, store: str, *written: WrittenRange) -> None:
    """Commit as the driver does when these tasks are done."""
    commit_coordinator.commit(chosen, PickedStore(store, ()), written, Application.of(chosen))


def publish(
    cluster: EmbeddedCluster,
    topic: str,
    values: pa.Array,
    partition: str = PARTITION,
    **given: object,
) -> int:
    """Write and commit one transaction; return the index of the store that was picked."""
    chosen = options(cluster, topic=topic, **given)
    with factory(chosen) as opened, opened.open(TopicPartition(topic, partition)) as writer:
        writer.write(values)
        commit(chosen, opened.picked, writer.finish(soon()))
        return cluster.stores.index(opened.picked)


def soon() -> Deadline:
    """Return a deadline that only a hanging writer misses."""
    return Deadline(PATIENCE_S)


def restarts(monkeypatch: pytest.MonkeyPatch) -> list[Deadline]:
    """Return a list of the deadlines that are restarted from now on."""
    restart, seen = Deadline.restart, list[Deadline]()

    def counted(deadline: Deadline) -> None:
        seen.append(deadline)
        restart(deadline)

    monkeypatch.setattr(Deadline, "restart", counted)
    return seen


def numbers(start: int, stop: int) -> pa.Array:
    return pa.array([b"%d" % number for number in range(start, stop)])


def texts_of(values: pa.Array) -> list[bytes]:
    found: list[bytes] = values.to_pylist()
    return found


class Held(NamedTuple):
    """One store's records of a partition, and its state."""

    values: list[bytes]
    info: TransactionState


def held(cluster: EmbeddedCluster, topic: str, index: int = 0, partition: str = PARTITION) -> Held:
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
