"""Format ``dafka``: the entry points that Spark calls.

Spark imports this module in every session that uses any Python source.  So it imports nothing but
Spark; methods import what they use.
"""

# ruff: noqa: N802, PLC0415 -- the names are Spark's; the module docstring says why imports are late

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from dafka_spark.python_workers import hide_frames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.datasource import DataSourceStreamReader
    from pyspark.sql.types import StructType

    from dafka_spark.options import SinkOptions, SourceOptions
    from dafka_spark.sink.writer import DafkaBatchWriter, DafkaStreamWriter
    from dafka_spark.source.batch_reader import DafkaBatchReader, MetadataReader


class DafkaDataSource(DataSource):
    """A source and sink of Dafka topics, with the options of ``dafka_spark.options``.

    Source: the columns of ``dafka_spark.schema``, or those that ``.schema(...)`` names; with option
    ``metadata`` those of ``dafka_spark.metadata``.

    Sink: columns ``value``, ``key``, ``headers`` and, without option ``topic``, ``topic``.
    """

    @classmethod
    def name(cls) -> str:
        """The name for ``format(...)``."""
        return "dafka"

    @hide_frames
    def schema(self) -> StructType:
        """Check the options and return all columns; Spark calls this in ``load()``."""
        from dafka_spark.options import SinkOptions, SourceOptions, creates_table, user_options

        given = user_options(self.options)
        if creates_table(self.options):
            options = SourceOptions.of_table(given, {})
            SinkOptions.of_table(given, {})  # a table is also written
            return self._schema(options, given)
        return self._schema(SourceOptions.of(given))

    @hide_frames
    def reader(self, schema: StructType) -> DafkaBatchReader | MetadataReader:
        """Return the reader of a batch query."""
        from dafka_spark.source.batch_reader import DafkaBatchReader, MetadataReader

        options = self._source_options(schema).for_batch()
        if options.metadata:
            return MetadataReader(schema, options)
        return DafkaBatchReader(schema, options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query.

        The reader raises any error in its first method: Spark 4.3 replaces an error that is raised
        here by an ``UnboundLocalError`` of its own.
        """
        from dafka_core.errors import DafkaError
        from dafka_spark.source.micro_batch_stream import DafkaMicroBatchStream, RefusedStream

        try:
            return DafkaMicroBatchStream(schema, self._source_options(schema).for_stream())
        except DafkaError as error:
            return RefusedStream(error)

    @hide_frames
    def writer(self, schema: StructType, overwrite: bool) -> DafkaBatchWriter:
        """Return the writer of a batch query; it refuses ``mode("overwrite")``."""
        from dafka_spark.sink.writer import DafkaBatchWriter

        writer = DafkaBatchWriter(schema, self._sink_options(schema), overwrite=overwrite)
        writer.begin()
        return writer

    @hide_frames
    def streamWriter(self, schema: StructType, overwrite: bool) -> DafkaStreamWriter:
        """Return the writer of a streaming query.

        ``overwrite`` is true in output mode ``complete``, in which the sink appends the whole
        result of each micro-batch, as Spark's Kafka sink does.
        """
        from dafka_spark.sink.writer import DafkaStreamWriter

        checkpoint = self.options.get("checkpointLocation", "")
        return DafkaStreamWriter(schema, self._sink_options(schema), checkpoint)

    def _schema(self, options: SourceOptions, table: Mapping[str, str] | None = None) -> StructType:
        from dafka_spark import metadata
        from dafka_spark.options import PERMISSIVE
        from dafka_spark.schema import full

        if options.metadata:
            return metadata.full(options.metadata, table)
        return full(
            table,
            headers=options.include_headers,
            value=options.value_type,
            errors=options.mode == PERMISSIVE,
        )

    def _source_options(self, schema: StructType) -> SourceOptions:
        from dafka_spark.options import PERMISSIVE, SourceOptions
        from dafka_spark.schema import NEVER_NULL, check, table_options

        options = SourceOptions.of_table(table_options(schema), self.options)
        has_nulls = options.opens_envelopes or options.mode == PERMISSIVE
        never_null = NEVER_NULL if has_nulls else NEVER_NULL | {"value"}
        check(schema, self._schema(options), never_null)
        return options

    def _sink_options(self, schema: StructType) -> SinkOptions:
        from dafka_spark.options import SinkOptions
        from dafka_spark.schema import is_table, table_options

        kept = table_options(schema) if is_table(schema) else {}
        return SinkOptions.of_table(kept, self.options)
