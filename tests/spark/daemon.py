"""Spark's daemon of Python workers, which has loaded what each worker of a test would load.

A fork gets it for nothing: it takes half a second of a processor otherwise, for each query and
some of its steps, and for each task that fails, since its worker ends.
"""

from __future__ import annotations

import pandas  # noqa: F401, ICN001 -- what Spark's workers import
from pyspark.daemon import manager

import dafka_spark.sink.writer
import dafka_spark.source.batch_reader
import dafka_spark.source.micro_batch_stream  # noqa: F401

if __name__ == "__main__":
    manager()
