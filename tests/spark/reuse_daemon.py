"""Spark's daemon of Python workers; each reused plan counts as old."""

from __future__ import annotations

from pyspark.daemon import manager

from dafka_spark.cluster import worker_process

if __name__ == "__main__":
    worker_process.OLD_PLAN_S = 0.0  # type: ignore[misc]
    manager()
