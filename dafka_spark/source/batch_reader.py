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
from dafka_spark.source import offset_range_limit
from dafka_spark.source.latest_offsets import fetch_latest_offsets
from dafka_spark.source.range_planner import OffsetRange, planned
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
        seen = fetch_latest_offsets(options, self._connect, thorough=True)
        heads = options.selection.of(seen.infos)
        start = offset_range_limit.starting(options.starting_offsets or EARLIEST, heads)
        end = offset_range_limit.ending(options.ending_offsets or LATEST, heads)
        for key in heads:
            if start[key] > end[key]:
                raise ConfigError(
                    "endingOffsets",
                    end[key],
                    f"topic {key.topic!r}, partition {key.partition} starts after it, at "
                    f"{start[key]}",
                )
        ranges = [OffsetRange(*key, start[key], end[key]) for key in heads]
        return list(planned(ranges, seen.holders, options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range.  Spark makes ``InputPartition(None)`` of no ranges: no rows."""
        if not isinstance(partition, OffsetRange):
            return iter(())
        return read_range(partition, self._schema, self._options, self._connect)
