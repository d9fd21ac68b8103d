"""``read_dafka`` and ``write_dafka``, as batches and streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dafka_core import EmbeddedCluster
from dafka_spark import read_dafka, write_dafka
from tests.spark.topics import TIMEOUT_S, texts


def test_one_call_reads_and_one_writes_batches_and_streams(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    tower, first = cluster.tower, f"{topic}, 1"  # not escaped
    rows = spark.range(5).selectExpr("cast(id as string) as value")
    assert write_dafka(rows, first, tower=tower) is None
    frame = read_dafka(spark, first, stream=True, tower=tower, starting_offsets="earliest")
    stream: dict[str, Any] = {
        "checkpoint": str(tmp_path),
        "trigger": {"availableNow": True},
        "query_name": "copy",
    }
    query = write_dafka(frame.select("value"), topic, tower=tower, **stream)
    assert query is not None
    assert query.name == "copy"
    assert query.awaitTermination(TIMEOUT_S)
    assert texts(read_dafka(spark, first, topic, tower=tower).collect()) == [*"0011223344"]
    with pytest.raises(PySparkException, match="did you mean 'startingOffsets'"):
        read_dafka(spark, topic, starting_offset="earliest")
