"""Short ways to fill topics, read them and run queries over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from dafka_core import EmbeddedCluster, Producer

TIMEOUT_S = 120


def produce(
    cluster: EmbeddedCluster,
    topic: str,
    values: Iterable[object],
    address: str | None = None,
    **options: Any,
) -> str:
    """Publishes values as text, waits for the store, and gives the partition."""
    with Producer(topic, tower=cluster.tower, address=address, **options) as producer:
        producer.publish_many([str(value).encode() for value in values])
        producer.flush(30)
        return producer.address


def batch(spark: SparkSession, cluster: EmbeddedCluster, **options: Any) -> DataFrame:
    """A batch read."""
    return spark.read.format("dafka").options(tower=cluster.tower, **options).load()


def stream(spark: SparkSession, cluster: EmbeddedCluster, **options: Any) -> DataFrame:
    """A streaming read, from the first record on if not told otherwise."""
    given: dict[str, Any] = {"startingOffsets": "earliest", "tower": cluster.tower, **options}
    return spark.readStream.format("dafka").options(**given).load()


def run(
    frame: DataFrame, checkpoint: Path, each: Callable[[list[Row]], object], **trigger: Any
) -> StreamingQuery:
    """Runs a query until it has read all there is, handing each batch's rows to ``each``."""

    def hand_over(rows: DataFrame, _: int) -> None:
        each(rows.collect())

    query = (
        frame.writeStream.foreachBatch(hand_over)
        .option("checkpointLocation", str(checkpoint))
        .trigger(**(trigger or {"availableNow": True}))
        .start()
    )
    try:
        assert query.awaitTermination(TIMEOUT_S)
    finally:
        query.stop()
    return query


def send(
    frame: DataFrame, cluster: EmbeddedCluster, checkpoint: Path, **options: Any
) -> StreamingQuery:
    """Runs a query that writes to Dafka until it has written all there is."""
    query = (
        frame.writeStream.format("dafka")
        .options(tower=cluster.tower, checkpointLocation=str(checkpoint), **options)
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(TIMEOUT_S)
    finally:
        query.stop()
    return query


def texts(rows: Iterable[Row]) -> list[str]:
    """The values of rows, sorted."""
    return sorted(bytes(row["value"]).decode() for row in rows)
