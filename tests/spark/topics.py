"""Helpers that fill topics, read them and run queries over them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dafka_core import EmbeddedCluster, Producer, Reader
from dafka_core.audit.verification import PROVED, passed_through, verified
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import TopicPartition
from dafka_core.queries.checkpoint import Checkpoint
from dafka_core.testing import wait_until

TIMEOUT_S = 120


def produce(
    cluster: EmbeddedCluster,
    topic: str,
    values: Iterable[object],
    address: str | None = None,
    **options: Any,
) -> str:
    """Publish values as text, wait for the store and return the partition."""
    with Producer(topic, tower=cluster.tower, address=address, **options) as producer:
        producer.publish_many([str(value).encode() for value in values])
        producer.flush(30)
        return producer.address


def produce_many(cluster: EmbeddedCluster, topic: str, partitions: int, values: int) -> None:
    """Write the numbers below ``values`` as text to each of many new partitions of a store."""
    records = pa.array([str(number).encode() for number in range(values)], pa.binary())
    with store_client(cluster) as client:
        for _ in range(partitions):
            tp = TopicPartition(topic, uuid.uuid4().hex.upper())
            with client.put(tp, 0, timeout_s=TIMEOUT_S) as put:
                put.write(records)
                put.finish(TIMEOUT_S)


def store_client(cluster: EmbeddedCluster) -> StoreClient:
    """Return a client of the cluster's only store."""
    with Reader(tower=cluster.tower) as reader:
        wait_until(reader.endpoints)
        (location,) = reader.endpoints().items()
    return StoreClient(StoreLocation(*location))


def proved(
    cluster: EmbeddedCluster, checkpoint: Path, *, passes_through: bool = False
) -> list[int]:
    """Verify all batches of an audited query and return their numbers."""
    own = Checkpoint.read(str(checkpoint))
    with store_client(cluster) as client:
        recompute = passed_through([client], own, timeout_s=TIMEOUT_S) if passes_through else None
        found = [*verified([client], own, recompute, timeout_s=TIMEOUT_S)]
    assert [each.why for each in found if each.state != PROVED] == []
    assert all(each.recomputed == passes_through for each in found)
    return [each.batch for each in found]


def batch(spark: SparkSession, cluster: EmbeddedCluster, **options: Any) -> DataFrame:
    """Load the records that are there now."""
    return spark.read.format("dafka").options(tower=cluster.tower, **options).load()


def stream(spark: SparkSession, cluster: EmbeddedCluster, **options: Any) -> DataFrame:
    """Load a stream, by default from the first record."""
    given: dict[str, Any] = {"startingOffsets": "earliest", "tower": cluster.tower, **options}
    return spark.readStream.format("dafka").options(**given).load()


def run(
    frame: DataFrame, checkpoint: Path, each: Callable[[list[Row]], object], **trigger: Any
) -> StreamingQuery:
    """Run a query until it has read all records; pass the rows of each batch to ``each``."""

    def hand_over(rows: DataFrame, _: int) -> None:
        each(rows.collect())

    return finish(frame.writeStream.foreachBatch(hand_over), checkpoint, **trigger)


def send(
    frame: DataFrame, cluster: EmbeddedCluster, checkpoint: Path, **options: Any
) -> StreamingQuery:
    """Run a query that writes to Dafka until it has written all records."""
    writer = frame.writeStream.format("dafka").options(tower=cluster.tower, **options)
    return finish(writer, checkpoint)


def finish(writer: DataStreamWriter, checkpoint: Path, **trigger: Any) -> StreamingQuery:
    """Run a query until it ends; the default trigger is ``availableNow``."""
    writer = writer.option("checkpointLocation", str(checkpoint))
    query = writer.trigger(**(trigger or {"availableNow": True})).start()
    try:
        assert query.awaitTermination(TIMEOUT_S)
    finally:
        query.stop()
    return query


def texts(rows: Iterable[Row]) -> list[str]:
    """Return the values of the rows, sorted."""
    return sorted(bytes(row["value"]).decode() for row in rows)
