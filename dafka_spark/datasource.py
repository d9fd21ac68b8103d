"""Format ``dafka``: the entry through which Spark reaches everything else.

Spark's discovery imports this module in every session that uses any Python source, so that it
needs nothing but Spark; the methods import what they use.
"""

# ruff: noqa: N802, PLC0415 -- the names are Spark's; the late imports have their reason above

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.datasource import DataSourceStreamReader
    from pyspark.sql.types import StructType

    from dafka_spark.options import SinkOptions, SourceOptions
    from dafka_spark.sink.writer import DafkaBatchWriter, DafkaStreamWriter
    from dafka_spark.source.batch_reader import DafkaBatchReader
    from dafka_spark.source.metadata_reader import MetadataReader


class DafkaDataSource(DataSource):
    """Reads and writes Dafka's topics.

    Source: columns ``key``, ``value``, ``topic``, ``partition``, ``offset``, ``timestamp`` and
    ``timestampType``, with option ``includeHeaders`` also ``headers``, or the ones named by
    ``.schema(...)``, and with option ``metadata`` those of ``dafka_spark.metadata``; options in
    ``dafka_spark.options.SourceOptions``.
    Sink: columns ``value``, ``key``, ``headers`` and, unless option ``topic`` is given, ``topic``;
    options in ``dafka_spark.options.SinkOptions``.
    """

    @classmethod
    def name(cls) -> str:
        """The name to give to ``format``."""
        return "dafka"

    def schema(self) -> StructType:
        """All columns, once the options are checked: Spark asks in ``load()``, before planning."""
        from dafka_spark.options import SourceOptions, creates_table, sides, user_options

        given = user_options(self.options)
        if creates_table(self.options):
            for side in sides():
                side.of_table(given, {})
            return self._schema(SourceOptions.of_table(given, {}), given)
        return self._schema(SourceOptions.of(given))

    def reader(self, schema: StructType) -> DafkaBatchReader | MetadataReader:
        """The reader of a batch query, with ``schema``'s columns."""
        from dafka_spark.source.batch_reader import DafkaBatchReader, PushingBatchReader
        from dafka_spark.source.metadata_reader import MetadataReader

        options = self._source_options(schema).for_batch()
        if options.metadata:
            return MetadataReader(schema, options)
        kind = PushingBatchReader if options.push_filters else DafkaBatchReader
        return kind(schema, options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of a streaming query, with ``schema``'s columns.

        What cannot be read is refused by the reader's first answer: of an error that is raised here
        Spark 4.3 shows the ``UnboundLocalError`` that it makes of it.
        """
        from dafka_core.errors import DafkaError
        from dafka_spark.source.micro_batch_stream import DafkaMicroBatchStream, RefusedStream

        try:
            return DafkaMicroBatchStream(schema, self._source_options(schema).for_stream())
        except DafkaError as error:
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DafkaBatchWriter:
        """The writer of a batch query; ``mode("overwrite")`` is refused, topics only grow."""
        from dafka_spark.sink.writer import DafkaBatchWriter

        writer = DafkaBatchWriter(schema, self._sink_options(schema), overwrite=overwrite)
        writer.begin()
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DafkaStreamWriter:
        """The writer of a streaming query.

        ``overwrite`` says that the output mode is ``complete``: as with Spark's Kafka sink each
        micro-batch's whole result is appended.  Spark 4.3 itself refuses mode ``update``.
        """
        from dafka_spark.sink.writer import DafkaStreamWriter

        del overwrite
        checkpoint = self.options.get("checkpointLocation", "")
        return DafkaStreamWriter(schema, self._sink_options(schema), checkpoint)

    def _schema(self, options: SourceOptions, table: Mapping[str, str] | None = None) -> StructType:
        from dafka_spark import metadata
        from dafka_spark.schema import full

        if options.metadata:
            return metadata.full(options.metadata, table)
        return full(
            table,
            headers=options.include_headers,
            value=options.value_kind,
            errors=options.keeps_bad,
        )

    def _source_options(self, schema: StructType) -> SourceOptions:
        from dafka_spark import metadata
        from dafka_spark.options import SourceOptions
        from dafka_spark.schema import check, table_options

        options = SourceOptions.of_table(table_options(schema), self.options)
        if options.metadata:
            metadata.check(schema, options.metadata)
        else:
            check(
                schema,
                headers=options.include_headers,
                opens=options.opens,
                value=options.value_kind,
                errors=options.keeps_bad,
            )
        return options

    def _sink_options(self, schema: StructType) -> SinkOptions:
        from dafka_spark.options import SinkOptions
        from dafka_spark.schema import is_table, table_options

        kept = table_options(schema) if is_table(schema) else {}
        return SinkOptions.of_table(kept, self.options)
