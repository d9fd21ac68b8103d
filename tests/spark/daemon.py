"""Spark's daemon of Python workers in tests.

It has imported the modules of the connector, which forked workers share.  Otherwise each new worker
spends half a second of CPU on imports: one for each query, for some steps of a query, and for each
failed task.  The workers log warnings to a file, and treat each reused plan as an old one.
"""

from __future__ import annotations

import logging
import os

import pandas  # noqa: F401, ICN001 -- imported by each of Spark's workers
from pyspark.daemon import manager

import dafka_spark.sink.writer
import dafka_spark.source.batch_reader
import dafka_spark.source.micro_batch_stream  # noqa: F401
from dafka_spark.cluster import worker_process
from tests.spark.jvm import WORKER_LOG

if __name__ == "__main__":
    if WORKER_LOG in os.environ:
        logging.getLogger("dafka_spark").addHandler(logging.FileHandler(os.environ[WORKER_LOG]))
    worker_process.OLD_PLAN_S = 0.0  # type: ignore[misc]
    manager()
