"""Dafka for Spark: the data source ``dafka``, for reading and writing, batch and streaming."""

from __future__ import annotations

from dafka_spark.datasource import DafkaDataSource

__all__ = ["DafkaDataSource"]
