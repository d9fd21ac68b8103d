"""Spark's daemon of Python workers in tests: that of the connector.

The workers log warnings to a file, and treat each reused plan as an old one.
"""

import logging
import os

from pyspark.daemon import manager

import dafka_spark.daemon  # noqa: F401
from dafka_spark import python_workers
from tests.spark.jvm import WORKER_LOG

if __name__ == "__main__":
    if WORKER_LOG in os.environ:
        logging.getLogger("dafka_spark").addHandler(logging.FileHandler(os.environ[WORKER_LOG]))
    python_workers.OLD_PLAN_S = 0.0  # type: ignore[misc]
    manager()
