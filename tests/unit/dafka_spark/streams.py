"""Streaming readers without Spark, and offsets as it hands them on."""

import json
import time
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from dafka_core.queries.source_offset import SourceOffset
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source import micro_batch_stream, offset_reader
from dafka_spark.source.micro_batch_stream import DafkaMicroBatchStream
from dafka_spark.source.partition_reader import PartitionReader
from tests.memory_reader import MemoryReader

ALL = ReadAllAvailable()


def set_clock(monkeypatch: pytest.MonkeyPatch, ahead_s: int) -> None:
    """Set the wall clock of the driver, and not that of the stores in this process."""
    clock = Mock(wraps=time, time_ns=lambda: time.time_ns() + ahead_s * 1_000_000_000)
    for module in (micro_batch_stream, offset_reader):
        monkeypatch.setattr(module, "time", clock)


def reader(source: MemoryReader, **given: str) -> DafkaMicroBatchStream:
    """A stream from ``earliest``, unless an option sets another start."""
    named = {name.lower(): value for name, value in given.items()}
    options = {"subscribe": "t", "startingoffsets": "earliest", "fetchtimeoutms": "20000", **named}
    if "assign" in named or "subscribepattern" in named:
        del options["subscribe"]
    return DafkaMicroBatchStream(full(), SourceOptions.of(options), source.connect)


def json_round(offset: Any) -> Any:
    """Return an offset as Spark hands it back."""
    return json.loads(json.dumps(offset))


def everything(stream: DafkaMicroBatchStream) -> dict[str, Any]:
    return stream.latestOffset(stream.initialOffset(), ALL)


def positions(offset: dict[str, Any]) -> dict[str, int]:
    return {tp.partition: at for tp, at in SourceOffset.parse(offset).positions.items()}


def planned(stream: DafkaMicroBatchStream, start: Any, end: Any) -> Any:
    parts: list[Any] = stream.partitions(json_round(start), json_round(end))
    return {(each.partition, each.start, each.end) for part in parts for each in part.ranges}


def rows(query: PartitionReader, tasks: Sequence[Any]) -> dict[str, list[int]]:
    """Return the offsets that tasks read, by partition."""
    found: dict[str, list[int]] = {}
    for task in tasks:
        table = pa.Table.from_batches(list(query.read(task)))
        for name, offset in zip(*map(table.column, ("partition", "offset")), strict=True):
            found.setdefault(name.as_py(), []).append(offset.as_py())
    return found


class Query:
    """A streaming query as Spark drives it: each batch starts at the end of the previous one."""

    def __init__(self, stream: DafkaMicroBatchStream) -> None:
        self.stream = stream
        self.start: dict[str, Any] = {}
        self.end = json_round(stream.initialOffset())

    def read(self, limit: ReadLimit = ALL) -> dict[str, list[int]]:
        """Return the offsets that the next batch reads, by partition."""
        self.start, self.end = self.end, json_round(self.stream.latestOffset(self.end, limit))
        return rows(self.stream, self.stream.partitions(self.start, self.end))
