"""The reader of batch queries.

It defines no ``pushFilters``: Spark refuses to plan a reader that does while
``spark.sql.python.filterPushdown.enabled`` is false, which is the default.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from dafka_core.errors import ConfigError
from dafka_spark.cluster import connections
from dafka_spark.options import EARLIEST, LATEST, SourceOptions
from dafka_spark.source.latest_offsets import fetch_latest_offsets
from dafka_spark.source.offset_range_limit import ending_offsets, starting_offsets
from dafka_spark.source.range_planner import OffsetRange, plan_tasks
from dafka_spark.source.range_reader import read_range

if TYPE_CHECKING:
    import pyarrow as pa


class DafkaBatchReader(DataSourceReader):
    """Reads what the stores hold when the query is planned."""

    def __init__(
        self,
        schema: StructType,
        options: SourceOptions,
        connect: connections.Connect = connections.lend,
    ) -> None:
        self._schema = schema
        self._options = options.for_batch()
        self._connect = connect

    def partitions(self) -> list[InputPartition]:
        """One range of offsets per task; none when there is nothing to read.

        Raises:
            ConfigError: ``startingOffsets`` or ``endingOffsets`` lie outside of a partition, or
                option ``fetch`` asks for what no store offers.
        """
        options = self._options
        snapshot = fetch_latest_offsets(options, self._connect, thorough=True)
        heads = options.selection.of(snapshot.infos)
        start = starting_offsets(options.starting_offsets or EARLIEST, heads)
        end = ending_offsets(options.ending_offsets or LATEST, heads)
        for tp in heads:
            if start[tp] > end[tp]:
                where = f"topic {tp.topic!r}, partition {tp.partition}"
                why = f"{where} starts after it, at {start[tp]}"
                raise ConfigError("endingOffsets", end[tp], why)
        ranges = [OffsetRange(*tp, start[tp], end[tp]) for tp in heads]
        return list(plan_tasks(ranges, snapshot.holders, options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range."""
        return read_range(partition, self._schema, self._options, self._connect)
