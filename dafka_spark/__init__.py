"""Dafka for Spark: the data source ``dafka``, for reading and writing, batch and streaming."""

from __future__ import annotations

from dafka_spark.datasource import DafkaDataSource
from dafka_spark.frames import in_session, read_dafka, write_dafka
from dafka_spark.lag_listener import LagListener
from dafka_spark.python_workers import use_this_python

use_this_python()

__all__ = ["DafkaDataSource", "LagListener", "in_session", "read_dafka", "write_dafka"]
