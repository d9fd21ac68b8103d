"""The reader of option ``metadata``: the driver asks the stores, and one task has the rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from dafka_spark.cluster.worker_process import warn_if_reused
from dafka_spark.source.metadata_tables import TABLES
from dafka_spark.source.range_reader import QueryReader
from dafka_spark.source.reported_lag import described


@dataclass
class MetadataRows(InputPartition):
    """All rows, as a stream of Arrow's."""

    packed: bytes


class MetadataReader(QueryReader, DataSourceReader):
    """Reads what is known of topics and stores when the query is planned."""

    def partitions(self) -> list[InputPartition]:
        """One task with the rows, in the columns that were asked for.

        Raises:
            ConfigError: no store has a topic or partition that is named, or there are fewer
                stores than ``minStores``.
            NoStoreError: no store was heard of within ``fetchTimeoutMs``.
        """
        columns = TABLES[self._options.metadata](self._options, self._connect)
        schema = to_arrow_schema(self._schema, timezone="UTC")
        arrays = [columns[field.name.lower()].cast(field.type) for field in schema]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
        return [MetadataRows(sink.getvalue().to_pybytes())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows."""
        warn_if_reused(self._planned_ns, described(self._options))
        assert isinstance(partition, MetadataRows)
        yield from pa.ipc.open_stream(partition.packed)
