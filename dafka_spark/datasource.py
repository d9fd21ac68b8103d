"""Format ``dafka``: the entry through which Spark reaches everything else.

Spark's discovery imports this module in every session that uses any Python source, so that it
needs nothing but Spark; the methods import what they use.
"""

# ruff: noqa: N802, PLC0415 -- the names are Spark's; the late imports have their reason above

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from dafka_spark.options import SourceOptions
    from dafka_spark.sink.writers import DafkaBatchWriter, DafkaStreamWriter
    from dafka_spark.source.batch_reader import DafkaBatchReader
    from dafka_spark.source.stream_reader import DafkaStreamReader


class DafkaDataSource(DataSource):
    """Reads and writes Dafka's topics.

    Source: columns ``key``, ``value``, ``topic``, ``partition``, ``offset`` and ``timestamp``, or
    the ones named by ``.schema(...)``; options in ``dafka_spark.options.SourceOptions``.
    Sink: column ``value`` and, unless option ``topic`` is given, ``topic``; options in
    ``dafka_spark.options.SinkOptions``.
    """

    @classmethod
    def name(cls) -> str:
        """The name to give to ``format``."""
        return "dafka"

    def schema(self) -> StructType:
        """All columns, once the options are checked: Spark asks in ``load()``, before planning."""
        from dafka_spark.options import SourceOptions, creates_table, user_options
        from dafka_spark.schema import full

        given = user_options(self.options)
        SourceOptions.of(given)
        return full(given if creates_table(self.options) else None)

    def reader(self, schema: StructType) -> DafkaBatchReader:
        """The reader of a batch query, with ``schema``'s columns."""
        from dafka_spark.source.batch_reader import DafkaBatchReader

        return DafkaBatchReader(schema, self._source_options(schema).for_batch())

    def streamReader(self, schema: StructType) -> DafkaStreamReader:
        """The reader of a streaming query, with ``schema``'s columns."""
        from dafka_spark.source.stream_reader import DafkaStreamReader

        return DafkaStreamReader(schema, self._source_options(schema).for_stream())

    def writer(self, schema: StructType, overwrite: bool) -> DafkaBatchWriter:
        """The writer of a batch query; ``mode("overwrite")`` is refused, topics only grow."""
        from dafka_spark.options import SinkOptions
        from dafka_spark.sink.writers import DafkaBatchWriter

        writer = DafkaBatchWriter(schema, SinkOptions.of(self.options), overwrite=overwrite)
        writer.begin()
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DafkaStreamWriter:
        """The writer of a streaming query.

        ``overwrite`` says that the output mode is ``complete``: as with Spark's Kafka sink each
        micro-batch's whole result is appended.
        """
        from dafka_spark.options import SinkOptions
        from dafka_spark.sink.writers import DafkaStreamWriter

        del overwrite
        return DafkaStreamWriter(schema, SinkOptions.of(self.options))

    def _source_options(self, schema: StructType) -> SourceOptions:
        from dafka_spark.options import SourceOptions
        from dafka_spark.schema import checked, table_options

        return SourceOptions.of({**table_options(checked(schema)), **self.options})
