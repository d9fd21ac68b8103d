"""Spark's daemon of Python workers, with the modules of the connector already imported.

Forked workers share them.  Otherwise each new worker spends half a second of CPU on imports: one
for each query, for some steps of a query, and for each failed task.
"""

from __future__ import annotations

import pandas  # noqa: F401, ICN001 -- imported by each of Spark's workers
from pyspark.daemon import manager

import dafka_spark.sink.writer
import dafka_spark.source.batch_reader
import dafka_spark.source.micro_batch_stream  # noqa: F401

if __name__ == "__main__":
    manager()
