"""Recomputes the rows of micro-batches, for ``dafka checkpoint verify --query``."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType

from dafka_core.audit import Recompute
from dafka_core.errors import DafkaError
from dafka_core.model.names import escape
from dafka_core.model.values import RowDigest, Values
from dafka_core.queries.checkpoint import Checkpoint, refused
from dafka_spark.options import SinkOptions
from dafka_spark.sink.rows import by_topic, check_columns, row_codec


def recomputed(
    spark: SparkSession,
    checkpoint: Checkpoint,
    query: Callable[[DataFrame], DataFrame],
    source: Mapping[str, str],
    sink: Mapping[str, str],
) -> Recompute:
    """Return a function that recomputes a batch of a stateless query, by a Spark job.

    Args:
        spark: the session.
        checkpoint: the query's.
        query: makes the DataFrame that is written from the source's.
        source: options of the query's only source, without those that choose records.
        sink: options of the sink that encode rows.
    """
    options = SinkOptions.of({"topic": "-", **sink})  # rows of all topics are compared together

    def recompute(batch: int) -> RowDigest:
        try:
            frame = _read(spark, checkpoint, batch, source)
            if frame is None:
                return RowDigest()
            rows = query(frame)
            check_columns(rows.schema, options)
            (kind,) = [each.dataType for each in rows.schema if each.name.lower() == "value"]
            digests = partial(_digests, kind=kind, options=options)
            found = rows.mapInArrow(digests, "digest string").collect()
        except PySparkException as error:
            why = str(error).splitlines()[0]
            raise DafkaError(f"the rows of batch {batch} cannot be recomputed: {why}") from error
        return sum((RowDigest.parse(row["digest"]) for row in found), RowDigest())

    return recompute


def _read(
    spark: SparkSession, checkpoint: Checkpoint, batch: int, source: Mapping[str, str]
) -> DataFrame | None:
    """Return the source's records of a batch; None if it has none."""
    if len(checkpoint.batch(batch).ends) > 1:
        why = "is of a query with several sources: rows cannot be recomputed"
        raise refused(checkpoint.path, why)
    starts: dict[str, dict[str, int]] = defaultdict(dict)
    ends: dict[str, dict[str, int]] = defaultdict(dict)
    for _, each in checkpoint.ranges(batch):
        if each.end > each.start:
            starts[escape(each.topic)][escape(each.partition)] = each.start
            ends[escape(each.topic)][escape(each.partition)] = each.end
    offsets = {
        "assign": {topic: [*partitions] for topic, partitions in ends.items()},
        "startingOffsets": starts,
        "endingOffsets": ends,
    }
    texts = {name: json.dumps(value) for name, value in offsets.items()}
    return spark.read.format("dafka").options(**{**source, **texts}).load() if ends else None


def _digests(
    batches: Iterator[pa.RecordBatch], *, kind: DataType, options: SinkOptions
) -> Iterator[pa.RecordBatch]:
    digest = RowDigest()
    codec = row_codec(kind, options)
    for batch in batches:
        for _, contents in by_topic(batch, options, codec):
            digest.add(Values.from_arrow(contents))
    yield pa.record_batch({"digest": pa.array([str(digest)], pa.string())})
