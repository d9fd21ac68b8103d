"""Streaming readers without Spark, and offsets as it hands them on."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable

from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source.micro_batch_stream import DafkaMicroBatchStream
from tests.memory_reader import MemoryReader

ALL = ReadAllAvailable()


def reader(source: MemoryReader, **given: str) -> DafkaMicroBatchStream:
    options = SourceOptions.of({"subscribe": "t", "startingoffsets": "earliest", **given})
    return DafkaMicroBatchStream(full(), options, source.connect)


def json_round(offset: Any) -> Any:
    """What Spark does with an offset."""
    return json.loads(json.dumps(offset))


def everything(stream: DafkaMicroBatchStream) -> dict[str, Any]:
    return stream.latestOffset(stream.initialOffset(), ALL)


def planned(stream: DafkaMicroBatchStream, start: Any, end: Any) -> Any:
    parts: list[Any] = stream.partitions(json_round(start), json_round(end))
    return {(each.partition, each.start, each.end) for part in parts for each in part.ranges}
