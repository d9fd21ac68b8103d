"""Spark's Python workers between tasks."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path

from pyspark.sql import SparkSession

from dafka_spark.cluster.worker_process import settle


def frozen_counts(path: Path) -> None:
    """Settle twice in a child of the worker, which has not settled before."""
    child = os.fork()
    if child == 0:
        gc.unfreeze()  # the objects that every forked child has frozen
        settle()
        once, left = gc.get_freeze_count(), len(gc.get_objects())
        settle()
        path.write_text(json.dumps([once, left, gc.get_freeze_count()]))
        os._exit(0)
    os.waitpid(child, 0)


def test_a_worker_excludes_loaded_modules_from_garbage_collection(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.sparkContext.parallelize([tmp_path / "counts"], 1).foreach(frozen_counts)
    once, left, twice = json.loads((tmp_path / "counts").read_text())
    assert once > 10_000  # the modules' functions and classes
    assert left < once / 10  # at most the objects made since
    assert twice == once
    frozen = gc.get_freeze_count()
    settle()  # outside of tasks
    assert gc.get_freeze_count() == frozen
