"""What Spark's Python workers do between tasks."""

from __future__ import annotations

import gc

from pyspark.sql import SparkSession

from dafka_spark.cluster.worker_process import settle


def frozen_counts(_: int) -> tuple[int, int, int]:
    before = gc.get_freeze_count()
    settle()
    once = gc.get_freeze_count()
    settle()
    return before, once, gc.get_freeze_count()


def test_what_a_worker_has_loaded_is_left_out_of_later_collections(spark: SparkSession) -> None:
    (counts,) = spark.sparkContext.parallelize([0], 1).map(frozen_counts).collect()
    before, once, twice = counts
    assert once > 10_000  # the modules' functions and classes
    assert before in (0, once)  # a worker that has run tasks of ours has settled already
    assert twice == once


def test_other_processes_are_left_alone() -> None:
    before = gc.get_freeze_count()
    settle()
    assert gc.get_freeze_count() == before
