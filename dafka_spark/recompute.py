"""Makes the rows of a query's micro-batches anew, each as a batch over exactly its source offsets.

``dafka checkpoint verify --query`` compares them with what the sink has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType

from dafka_core.audit.verification import Recompute
from dafka_core.errors import DafkaError
from dafka_core.model.names import escape
from dafka_core.model.row_digest import RowDigest
from dafka_core.model.values import Values
from dafka_core.queries.checkpoint import Checkpoint
from dafka_spark.options import SinkOptions
from dafka_spark.sink.rows import by_topic, check_columns, encoded, row_codec

_ANY_TOPIC = {"topic": "-"}
"""Where rows go is not compared."""


def recomputed(
    spark: SparkSession,
    checkpoint: Checkpoint,
    query: Callable[[DataFrame], DataFrame],
    source: Mapping[str, str],
    sink: Mapping[str, str],
) -> Recompute:
    """Makes the rows of a query with one source, which keeps no state.

    Args:
        spark: runs a job for each batch.
        checkpoint: the query's.
        query: what is made of the source's rows.
        source: options of its source, but for those that say what is read.
        sink: options of its sink that say how rows are written.

    What is returned raises ``DafkaError`` for a batch that Spark cannot make.
    """
    options = SinkOptions.of({**_ANY_TOPIC, **sink})

    def recompute(batch: int) -> RowDigest:
        try:
            frame = _source_rows(spark, checkpoint, batch, source)
            if frame is None:
                return RowDigest()
            rows = query(frame)
            check_columns(rows.schema, options)
            (kind,) = [each.dataType for each in rows.schema if each.name.lower() == "value"]
            digests = partial(_digests, kind=kind, options=options)
            found = rows.mapInArrow(digests, "digest string").collect()
        except PySparkException as error:
            why = str(error).splitlines()[0]
            raise DafkaError(f"the rows of batch {batch} cannot be made anew: {why}") from error
        return sum((RowDigest.parse(row["digest"]) for row in found), RowDigest())

    return recompute


def _source_rows(
    spark: SparkSession, checkpoint: Checkpoint, batch: int, source: Mapping[str, str]
) -> DataFrame | None:
    if len(checkpoint.batch(batch).ends) > 1:
        raise checkpoint.refused("is of a query with several sources: its rows cannot be made anew")
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for _, each in checkpoint.ranges(batch):
        if each.end > each.start:
            starts.setdefault(escape(each.topic), {})[escape(each.partition)] = each.start
            ends.setdefault(escape(each.topic), {})[escape(each.partition)] = each.end
    if not ends:
        return None
    given = {
        **source,
        "assign": json.dumps({topic: [*partitions] for topic, partitions in ends.items()}),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
    }
    return spark.read.format("dafka").options(**given).load()


def _digests(
    batches: Iterator[pa.RecordBatch], *, kind: DataType, options: SinkOptions
) -> Iterator[pa.RecordBatch]:
    digest = RowDigest()
    for batch in encoded(batches, row_codec(kind, options)):
        for _, contents in by_topic(batch, options):
            digest.add(Values.from_arrow(contents))
    yield pa.record_batch({"digest": pa.array([str(digest)], pa.string())})
