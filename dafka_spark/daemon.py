"""A daemon of Spark's Python workers that share the modules of the connector.

Set ``spark.python.daemon.module=dafka_spark.daemon``.  Otherwise each worker imports them: one for
each task at a time, and a new one after each failed task.  It is the daemon of tasks only: Spark
plans queries with its own.

Threads do not survive the fork of a worker.  The modules start only those of jemalloc and OpenBLAS,
which handle forks.
"""

from __future__ import annotations

from contextlib import suppress

from pyspark.daemon import manager

import dafka_spark.sink.writer
import dafka_spark.source.batch_reader
import dafka_spark.source.micro_batch_stream  # noqa: F401

with suppress(ImportError):
    import pandas  # noqa: F401, ICN001 -- imported by Spark's workers where it is installed

if __name__ == "__main__":
    manager()
