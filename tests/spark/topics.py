"""Helpers that fill topics, read them and run queries over them."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dafka_core import EmbeddedCluster, Producer, Reader
from dafka_core.audit import PROVED, passed_through, verified
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.queries.checkpoint import Checkpoint
from dafka_core.testing import wait_until

TIMEOUT_S = 120


class Topics:
    """The topics of a cluster, for Spark and for producers."""

    def __init__(self, spark: SparkSession, cluster: EmbeddedCluster, **options: str) -> None:
        self.spark = spark
        self.cluster = cluster
        self.options = {"tower": cluster.tower, **options}

    def produce(
        self, topic: str, values: Iterable[object], address: str | None = None, **options: Any
    ) -> str:
        """Publish values as text, wait for the store and return the partition."""
        with Producer(topic, tower=self.cluster.tower, address=address, **options) as producer:
            producer.publish_many([str(value).encode() for value in values])
            producer.flush(30)
            return producer.address

    def store(self) -> StoreClient:
        """Return a client of the cluster's only store."""
        with Reader(tower=self.cluster.tower) as reader:
            wait_until(reader.endpoints)
            (location,) = reader.endpoints().items()
        return StoreClient(StoreLocation(*location))

    def visible(self, *topics: str) -> list[int]:
        """Return the number of visible records of each topic."""
        with self.store() as client:
            heads = client.heads([*topics], timeout_s=TIMEOUT_S)
        return [sum(info.end for info in heads if info.topic == topic) for topic in topics]

    def batch(self, *topics: str, **options: Any) -> DataFrame:
        """Load the present records; missing topics are empty unless an option refuses them."""
        given = {"subscribe": ",".join(topics)} if topics else {}
        return self.spark.read.format("dafka").options(**self.options, **given, **options).load()

    def numbers(self, *topics: str) -> list[int]:
        """Return the values of all records, sorted; a missing topic is empty."""
        rows = self.batch(*topics, failOnMissingTopic=False).select("value").collect()
        return sorted(int(row["value"]) for row in rows)

    def stream(self, topic: str | None = None, **options: Any) -> DataFrame:
        """Load a stream, by default from the first record."""
        given: dict[str, Any] = {"startingOffsets": "earliest", **self.options, **options}
        if topic is not None:
            given["subscribe"] = topic
        return self.spark.readStream.format("dafka").options(**given).load()

    def save(self, frame: DataFrame, **options: Any) -> None:
        """Write the rows of a batch."""
        writer = frame.write.format("dafka").mode("append")
        writer.options(**self.options, **options).save()

    def writer(self, frame: DataFrame, **options: Any) -> DataStreamWriter:
        """Return the writer of a stream to topics."""
        return frame.writeStream.format("dafka").options(**self.options, **options)

    def send(self, frame: DataFrame, checkpoint: Path, **options: Any) -> StreamingQuery:
        """Write all rows of a stream."""
        return finish(self.writer(frame, **options), checkpoint)

    def proved(self, checkpoint: Path) -> list[int]:
        """Verify all batches of an audited query that copies rows, and return their numbers."""
        own = Checkpoint.read(str(checkpoint))
        with self.store() as client:
            recompute = passed_through([client], own, timeout_s=TIMEOUT_S)
            found = [*verified([client], own, recompute, timeout_s=TIMEOUT_S)]
        assert {(each.state, each.recomputed, each.why) for each in found} == {(PROVED, True, "")}
        return [each.batch for each in found]


def run(
    frame: DataFrame, checkpoint: Path, each: Callable[[list[Row]], object], **trigger: Any
) -> StreamingQuery:
    """Run a query until it has read all records; pass the rows of each batch to ``each``."""

    def pass_on(rows: DataFrame, _: int) -> None:
        each(rows.collect())

    return finish(frame.writeStream.foreachBatch(pass_on), checkpoint, **trigger)


def start(writer: DataStreamWriter, checkpoint: Path, **trigger: Any) -> StreamingQuery:
    """Start a query; the default trigger is ``availableNow``."""
    writer = writer.option("checkpointLocation", str(checkpoint))
    return writer.trigger(**(trigger or {"availableNow": True})).start()


def finish(writer: DataStreamWriter, checkpoint: Path, **trigger: Any) -> StreamingQuery:
    """Run a query until it ends."""
    return finished(start(writer, checkpoint, **trigger))


def finished(query: StreamingQuery) -> StreamingQuery:
    """Wait until a query ends."""
    try:
        assert query.awaitTermination(TIMEOUT_S)
    finally:
        query.stop()
    return query


def forget_last_commit(checkpoint: Path) -> None:
    """Leave the files as if the driver had died before Spark's commit of the last batch."""
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for name in (str(last), f".{last}.crc"):
        (commits / name).unlink(missing_ok=True)


def source_offsets(checkpoint: Path) -> list[str]:
    """Return the source's offset of each batch, as in the checkpoint."""
    files = [path for path in (checkpoint / "offsets").iterdir() if path.name.isdigit()]
    files.sort(key=lambda path: int(path.name))
    return [path.read_text().splitlines()[2] for path in files]


def texts(rows: Iterable[Row]) -> list[str]:
    """Return the values of the rows, sorted."""
    return sorted(bytes(row["value"]).decode() for row in rows)
